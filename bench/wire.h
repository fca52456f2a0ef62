// Bytes on their way between a connection and its socket: plain, within TLS, and in the frames of a WebSocket.
//
// Connecting waits for its hand-shakes; reading and writing do not wait. Client frames have the mask 0, which costs the
// peer what any other does and us nothing. Included once by loadgen.c and by flood.c, after amqp.h. Sections are those of RFC 6455.

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

typedef struct {
    int fd;
    bool websocket;
    Buffer framed_in, framed_out; // with a WebSocket: bytes as the socket has them
#ifdef WITH_TLS
    SSL *tls; // NULL: none
#endif
} Wire;

// As read(2): 0 at the end, -1 with EAGAIN where there is nothing yet.
static ssize_t wire_read(Wire *w, void *bytes, size_t size) {
#ifdef WITH_TLS
    if (w->tls) {
        int n = SSL_read(w->tls, bytes, size);
        if (n > 0) return n;
        int error = SSL_get_error(w->tls, n);
        if (error == SSL_ERROR_ZERO_RETURN) return 0;
        errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
        return -1;
    }
#endif
    return read(w->fd, bytes, size);
}

// As write(2).
static ssize_t wire_write(Wire *w, const void *bytes, size_t size) {
#ifdef WITH_TLS
    if (w->tls) {
        int n = SSL_write(w->tls, bytes, size);
        if (n > 0) return n;
        int error = SSL_get_error(w->tls, n);
        errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
        return -1;
    }
#endif
    return write(w->fd, bytes, size);
}

// Begin TLS, with any certificate: it is about cost. Return why that failed, or NULL.
static const char *wire_encrypt(Wire *w) {
#ifdef WITH_TLS
    static SSL_CTX *context;
    if (!context) {
        context = SSL_CTX_new(TLS_client_method());
        if (!context) die(EXIT_PROTOCOL, "no TLS");
        SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_read_ahead(context, 1); // else two system calls a record
    }
    w->tls = SSL_new(context);
    bool done = w->tls && SSL_set_fd(w->tls, w->fd) && SSL_connect(w->tls) == 1;
    return done ? NULL : ERR_error_string(ERR_get_error(), NULL);
#else
    (void)w;
    die(EXIT_USAGE, "built without TLS: install the headers of OpenSSL (Debian: libssl-dev)");
    return NULL;
#endif
}

// Ask for a WebSocket and read its answer, byte by byte, so that none of what follows is taken. Return why that failed,
// or NULL.
static const char *wire_upgrade(Wire *w) {
    static const char REQUEST[] =
        "GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n";
    if (wire_write(w, REQUEST, sizeof REQUEST - 1) != sizeof REQUEST - 1)
        return "the request for a WebSocket could not be sent";
    char head[2048];
    size_t n = 0;
    while (n < 4 || memcmp(head + n - 4, "\r\n\r\n", 4)) {
        if (n == sizeof head || wire_read(w, head + n, 1) != 1) return "no answer to an upgrade";
        n++;
    }
    if (memcmp(head, "HTTP/1.1 101 ", 13)) return "the upgrade to a WebSocket is refused";
    w->websocket = true;
    return NULL;
}

static inline void wire_close(Wire *w) {
#ifdef WITH_TLS
    SSL_free(w->tls);
    w->tls = NULL;
#endif
    close(w->fd);
    w->websocket = false;
    empty(&w->framed_in), empty(&w->framed_out);
}

// Put n bytes into a frame of a client: 5.2.
static void put_websocket_frame(Buffer *b, uint8_t opcode, const void *bytes, size_t n) {
    uint8_t head[14] = {0x80 | opcode}, *p = head + 2;
    if (n < 126) {
        head[1] = 0x80 | n;
    } else if (n < 65536) {
        head[1] = 0x80 | 126, *p++ = n >> 8, *p++ = n;
    } else {
        head[1] = 0x80 | 127, store32(p, (uint64_t)n >> 32), store32(p + 4, n), p += 8;
    }
    p += 4; // the mask, 0
    put(b, head, p - head);
    put(b, bytes, n);
}

// Move AMQP bytes into frames, one for each AMQP frame, as the official clients write them.
static void frame_output(Wire *w, Buffer *out) {
    while (live(out)) {
        const uint8_t *p = out->data + out->start;
        size_t size = memcmp(p, "AMQP", 4) ? load32(p) : 8;
        put_websocket_frame(&w->framed_out, 2, p, size);
        consume(out, size);
    }
}

// Move what is whole of a server's frames into AMQP bytes, and answer pings.
static void unframe_input(Wire *w, Buffer *in) {
    Buffer *b = &w->framed_in;
    for (;;) {
        const uint8_t *p = b->data + b->start;
        if (live(b) < 2) return;
        size_t size = p[1], head = 2;
        if (size >= 128) die(EXIT_PROTOCOL, "a masked frame from a server");
        if (size >= 126) head = size == 126 ? 4 : 10;
        if (live(b) < head) return;
        if (size == 126) size = p[2] << 8 | p[3];
        else if (size == 127) size = (uint64_t)load32(p + 2) << 32 | load32(p + 6);
        if (live(b) - head < size) return;
        switch (p[0] & 15) {
        case 0: case 2: put(in, p + head, size); break;
        case 8: break; // the end of the stream follows
        case 9: put_websocket_frame(&w->framed_out, 10, p + head, size); break;
        case 10: break;
        default: die(EXIT_PROTOCOL, "a frame with opcode %d from a server", p[0] & 15);
        }
        consume(b, head + size);
    }
}
