#!/bin/sh
exec "$1/interop"
