// AMQP 1.0 by hand: byte buffers, encoding, decoding, and how all of it ends when something is wrong.
//
// What the load generator and the flood need, and no more. Included once by each, after errno.h with _GNU_SOURCE;
// `inline` marks what only one of them calls. Sections quoted are those of the core specification (part.section).

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Exit statuses, so that a script can tell them apart.
enum { EXIT_USAGE = 1, EXIT_PROTOCOL = 2, EXIT_PEER_CLOSED = 3, EXIT_STALLED = 4, EXIT_OUTCOME = 5 };

static void die(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(status);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *must_alloc(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) die(EXIT_PROTOCOL, "out of memory");
    return p;
}

// Here begins: byte buffers.

typedef struct {
    uint8_t *data;
    size_t start, end, capacity; // what is live is data[start..end)
} Buffer;

static size_t live(const Buffer *b) { return b->end - b->start; }

static void put(Buffer *b, const void *bytes, size_t n) {
    if (b->end + n > b->capacity) {
        b->capacity = (b->end + n) * 2 + 4096;
        b->data = realloc(b->data, b->capacity);
        if (!b->data) die(EXIT_PROTOCOL, "out of memory");
    }
    memcpy(b->data + b->end, bytes, n);
    b->end += n;
}

static void consume(Buffer *b, size_t n) {
    b->start += n;
    if (b->start == b->end) {
        b->start = b->end = 0;
    } else if (b->start > 1 << 20) {
        memmove(b->data, b->data + b->start, live(b));
        b->end -= b->start;
        b->start = 0;
    }
}

static inline void empty(Buffer *b) { b->start = b->end = 0; }

// Here begins: encoding.

// Codes of performatives (2.7), SASL frames (5.3.3), outcomes (3.4) and termini (3.5).
enum {
    OPEN = 0x10, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE,
    ACCEPTED = 0x24, REJECTED = 0x25, SOURCE = 0x28, TARGET = 0x29,
    SASL_MECHANISMS = 0x40, SASL_INIT = 0x41, SASL_OUTCOME = 0x44,
};
enum { AMQP_FRAME = 0, SASL_FRAME = 1 };
enum { ROLE_SENDER = 0, ROLE_RECEIVER = 1 };

static void store32(uint8_t *p, uint32_t v) {
    p[0] = v >> 24, p[1] = v >> 16, p[2] = v >> 8, p[3] = v;
}

static void put8(Buffer *b, uint8_t v) { put(b, &v, 1); }

static void put32(Buffer *b, uint32_t v) {
    uint8_t bytes[4];
    store32(bytes, v);
    put(b, bytes, 4);
}

static void put_null(Buffer *b) { put8(b, 0x40); }
static void put_bool(Buffer *b, bool v) { put8(b, v ? 0x41 : 0x42); }
static inline void put_ubyte(Buffer *b, uint8_t v) { put8(b, 0x50), put8(b, v); }

static void put_uint(Buffer *b, uint32_t v) {
    if (v == 0) {
        put8(b, 0x43);
    } else if (v < 256) {
        put8(b, 0x52), put8(b, v);
    } else {
        put8(b, 0x70), put32(b, v);
    }
}

static void put_variable(Buffer *b, uint8_t short_code, const void *bytes, size_t n) {
    if (n < 256) {
        put8(b, short_code), put8(b, n);
    } else {
        put8(b, short_code | 0x10), put32(b, n); // each type's 32-bit code is its 8-bit code + 0x10
    }
    put(b, bytes, n);
}

static void put_string(Buffer *b, const char *s) { put_variable(b, 0xa1, s, strlen(s)); }
static void put_symbol(Buffer *b, const char *s) { put_variable(b, 0xa3, s, strlen(s)); }

// Open a described list of `count` fields; close_list() writes its size.
static size_t open_list(Buffer *b, uint8_t code, uint8_t count) {
    size_t at = b->end;
    put(b, (uint8_t[]){0x00, 0x53, code, 0xd0, 0, 0, 0, 0, 0, 0, 0, count}, 12);
    return at;
}

static void close_list(Buffer *b, size_t at) { store32(b->data + at + 4, b->end - at - 8); }

// The same as list8, which clients write for a list that fits: close_short_list() writes its size.
static size_t open_short_list(Buffer *b, uint8_t code, uint8_t count) {
    size_t at = b->end;
    put(b, (uint8_t[]){0x00, 0x53, code, 0xc0, 0, count}, 6);
    return at;
}

static void close_short_list(Buffer *b, size_t at) { b->data[at + 4] = b->end - at - 5; }

static size_t open_frame(Buffer *b, uint8_t type) {
    size_t at = b->end;
    put(b, (uint8_t[]){0, 0, 0, 0, 2, type, 0, 0}, 8);
    return at;
}

static void close_frame(Buffer *b, size_t at) { store32(b->data + at, b->end - at); }

// Here begins: decoding.

static uint32_t load32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

// Size of the encoded value at p, which must end by `end` (1.6: the high half of the code gives the width).
static size_t value_size(const uint8_t *p, const uint8_t *end) {
    static const uint8_t fixed[] = {[4] = 1, [5] = 2, [6] = 3, [7] = 5, [8] = 9, [9] = 17};
    size_t n = 0, room = end - p;
    if (p >= end) die(EXIT_PROTOCOL, "a value is cut off");
    switch (p[0] >> 4) {
    case 0x0:
        n = 1 + value_size(p + 1, end);
        n += value_size(p + n, end);
        break;
    case 0x4: case 0x5: case 0x6: case 0x7: case 0x8: case 0x9:
        n = fixed[p[0] >> 4];
        break;
    case 0xa: case 0xc: case 0xe:
        if (room >= 2) n = 2 + (size_t)p[1];
        break;
    case 0xb: case 0xd: case 0xf:
        if (room >= 5) n = 5 + (size_t)load32(p + 1);
        break;
    }
    if (n == 0 || n > room) die(EXIT_PROTOCOL, "a value of type 0x%02x is bad or cut off", p[0]);
    return n;
}

// The number or boolean at p; null and other types count as `otherwise`.
static uint64_t number(const uint8_t *p, uint64_t otherwise) {
    switch (p ? p[0] : 0x40) {
    case 0x41: return 1;
    case 0x42: case 0x43: case 0x44: return 0;
    case 0x50: case 0x52: case 0x53: case 0x56: return p[1];
    case 0x60: return p[1] << 8 | p[2];
    case 0x70: return load32(p + 1);
    case 0x80: return (uint64_t)load32(p + 1) << 32 | load32(p + 5);
    default: return otherwise;
    }
}

enum { FIELDS_MAX = 16 }; // attach has the most: 14

typedef struct {
    uint8_t code;
    const uint8_t *field[FIELDS_MAX]; // NULL: absent or null
} Performative;

static inline Performative decode_performative(const uint8_t *p, const uint8_t *end) {
    Performative result = {0};
    value_size(p, end); // checks the whole nest once; what follows stays inside
    if (p[0] != 0x00) die(EXIT_PROTOCOL, "a frame body does not begin with a descriptor");
    result.code = number(p + 1, 0);
    const uint8_t *list = p + 1 + value_size(p + 1, end), *item;
    uint32_t count;
    switch (list[0]) {
    case 0x45: return result;
    case 0xc0: count = list[1] ? list[2] : 0, item = list + 3; break;
    case 0xd0: count = load32(list + 1) >= 4 ? load32(list + 5) : 0, item = list + 9; break;
    default: die(EXIT_PROTOCOL, "performative 0x%02x is no list", result.code); return result;
    }
    for (uint32_t i = 0; i < count && i < FIELDS_MAX; i++) {
        if (item[0] != 0x40) result.field[i] = item;
        item += value_size(item, end);
    }
    return result;
}

// Code of a described value such as an outcome; 0 where there is none.
static inline uint8_t outcome_code(const uint8_t *p) { return p && p[0] == 0x00 ? number(p + 1, 0) : 0; }

// Bytes of a frame as text, for messages about it: conditions and descriptions are readable in it.
static const char *readable(const uint8_t *p, const uint8_t *end) {
    static char text[400];
    size_t n = 0;
    for (; p < end && n < sizeof text - 1; p++) text[n++] = *p >= 32 && *p < 127 ? *p : '.';
    text[n] = 0;
    return text;
}
