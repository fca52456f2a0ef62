#!/bin/sh
# Says why the program cannot be built on this machine, if so.
printf '#include <openssl/ssl.h>\n' | cc -E - > /dev/null 2>&1 && exit 0
echo "a C compiler or the headers of OpenSSL are not installed"
exit 1
