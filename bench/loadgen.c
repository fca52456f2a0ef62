// loadgen: an AMQP 1.0 load generator that is not itself the bottleneck.
//
// One thread, poll(2), frames encoded by hand, no library: it costs about 1 us of CPU a message, so that on a machine
// shared with the broker the broker is what is measured. It knows one link a connection and one message shape; it is no
// client library. Anything but the outcome `accepted`, in either direction, ends it with a message and a status that is
// not 0.
//
// Order of this file: options, byte buffers, encoding, decoding, one connection, frames in, the loop, the report.
// Sections quoted are those of the AMQP 1.0 core specification (part.section).

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char USAGE[] =
    "usage: loadgen -m send|recv|both [options]     drive messages and report rates and latencies\n"
    "       loadgen -I N [options]                  hold N idle connections until stdin closes\n"
    "  -h HOST  -p PORT        broker (127.0.0.1, 5672)\n"
    "  -u USER  -P PASSWORD    SASL PLAIN (default: ANONYMOUS)\n"
    "  -a ADDRESS              queue to send to, and to receive from (q)\n"
    "  -A ADDRESS              queue to receive from, where it differs\n"
    "  -n COUNT                messages over all connections (100000)\n"
    "  -s BYTES                body size (1024)\n"
    "  -r                      rich messages: annotations, properties, application properties\n"
    "  -S N  -R N              sending and receiving connections (1 and 1)\n"
    "  -w N                    unsettled sends, and receive credit, a connection (1000)\n"
    "  -o RATE                 offer RATE messages a second over all senders; latency counts from the intended time\n"
    "  -x                      pre-settled transfers\n"
    "  -i                      one disposition a message (default: ranges of up to 100)\n"
    "  -2                      receiver-settle-mode second: unsettled dispositions, each waits for the broker's answer\n"
    "  -1                      the same dispositions on a link in mode first, for brokers that refuse second\n"
    "  -B PID                  broker process, for its CPU time\n"
    "  -T SECONDS              give up after so long without progress (30)\n"
    "  -j                      report as one line of JSON\n";

// Exit statuses, so that a script can tell them apart.
enum { EXIT_USAGE = 1, EXIT_PROTOCOL = 2, EXIT_PEER_CLOSED = 3, EXIT_STALLED = 4, EXIT_OUTCOME = 5 };

static struct {
    const char *mode, *host, *port, *user, *password, *send_address, *recv_address;
    long count;
    double rate, stall_s;
    int size, senders, receivers, window, idle, broker_pid;
    bool rich, settled, individual, second, await_answer, json;
} opt = {
    .mode = "send", .host = "127.0.0.1", .port = "5672", .password = "", .send_address = "q",
    .count = 100000, .stall_s = 30, .size = 1024, .senders = 1, .receivers = 1, .window = 1000,
};

static void die(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("loadgen: ", stderr);
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
static void put_ubyte(Buffer *b, uint8_t v) { put8(b, 0x50), put8(b, v); }

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

static size_t open_frame(Buffer *b, uint8_t type) {
    size_t at = b->end;
    put(b, (uint8_t[]){0, 0, 0, 0, 2, type, 0, 0}, 8);
    return at;
}

static void close_frame(Buffer *b, size_t at) { store32(b->data + at, b->end - at); }

// The one message that is sent again and again; only the digits of its message-id change.
static Buffer message;
static size_t message_id_at; // 0: the message has no id

static void build_message(void) {
    Buffer *b = &message;
    put(b, (uint8_t[]){0x00, 0x53, 0x70, 0xc0, 2, 1, 0x41}, 7); // header: durable
    if (opt.rich) {
        Buffer m = {0};
        put8(&m, 2), put_symbol(&m, "x-opt-partition-key"), put_string(&m, "pk-0001");
        put(b, (uint8_t[]){0x00, 0x53, 0x72}, 3), put_variable(b, 0xc1, m.data, m.end);
        m.end = 0;
        put8(&m, 7), put_string(&m, "7f1c0a3e5b2d4f6a8c9e0d1f00000000");
        size_t id_end = m.end;
        for (int i = 0; i < 5; i++) put_null(&m);
        put_symbol(&m, "application/json");
        put(b, (uint8_t[]){0x00, 0x53, 0x73}, 3), put_variable(b, 0xc0, m.data, m.end);
        message_id_at = b->end - (m.end - id_end) - 8;
        m.end = 0;
        put8(&m, 4), put_string(&m, "kind"), put_string(&m, "order");
        put_string(&m, "tenant"), put(&m, (uint8_t[]){0x54, 42}, 2);
        put(b, (uint8_t[]){0x00, 0x53, 0x74}, 3), put_variable(b, 0xc1, m.data, m.end);
        free(m.data);
    }
    uint8_t *body = must_alloc(opt.size, 1);
    memset(body, 'x', opt.size);
    put(b, (uint8_t[]){0x00, 0x53, 0x75, 0xb0}, 4), put32(b, opt.size), put(b, body, opt.size);
    free(body);
}

static void number_message(uint32_t n) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 7; message_id_at && i >= 0; i--, n >>= 4) message.data[message_id_at + i] = digits[n & 15];
}

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

static Performative decode_performative(const uint8_t *p, const uint8_t *end) {
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
static uint8_t outcome_code(const uint8_t *p) { return p && p[0] == 0x00 ? number(p + 1, 0) : 0; }

// Bytes of a frame as text, for messages about it: conditions and descriptions are readable in it.
static const char *readable(const uint8_t *p, const uint8_t *end) {
    static char text[400];
    size_t n = 0;
    for (; p < end && n < sizeof text - 1; p++) text[n++] = *p >= 32 && *p < 127 ? *p : '.';
    text[n] = 0;
    return text;
}

// Here begins: connection.

typedef enum { SASL_HEADER, SASL, OPENING, ATTACHED, CLOSING, CLOSED } Phase;

// One connection with one session and one link. Delivery ids count from 0, so one array holds a time per delivery.
typedef struct {
    int fd, id;
    Phase phase;
    bool sends;
    bool header_seen; // the peer's AMQP header, after SASL
    Buffer in, out;
    long total, started, done; // messages: to do, sent or received, settled
    double *started_at;        // seconds, by delivery; negative once settled
    long outstanding;
    uint32_t next_out, peer_window, next_in; // session: transfer ids, and transfers the peer still takes
    uint32_t delivery_count;
    long credit;         // as sender: what the peer allows. As receiver: what we gave and is not used
    uint32_t first_in;   // the peer's first delivery id
    uint32_t partial_id; // delivery under way over several frames
    uint32_t ack_first, ack_count; // accepted and not told yet
    double last_write_s;
} Connection;

static float *latencies_us; // send to accepted; where only receiving, disposition to the broker's answer
static long latency_count;
static double clock_s;   // time of the turn: one look at the clock serves all frames of a read
static double started_s; // when every link stood

static void write_open(Connection *c) {
    Buffer *b = &c->out;
    char name[64];
    put(b, "AMQP\0\1\0\0", 8);
    size_t frame = open_frame(b, AMQP_FRAME), list = open_list(b, OPEN, 5);
    snprintf(name, sizeof name, "loadgen-%d-%d", getpid(), c->id);
    put_string(b, name), put_string(b, opt.host);
    put_uint(b, 1 << 18);                        // max-frame-size
    put(b, (uint8_t[]){0x60, 0x00, 0xff}, 3);    // channel-max
    put_uint(b, 240000);                         // idle-time-out, ms
    close_list(b, list), close_frame(b, frame);

    frame = open_frame(b, AMQP_FRAME), list = open_list(b, BEGIN, 4);
    put_null(b), put_uint(b, 0), put_uint(b, 0x7fffffff), put_uint(b, 0x7fffffff);
    close_list(b, list), close_frame(b, frame);

    frame = open_frame(b, AMQP_FRAME), list = open_list(b, ATTACH, c->sends ? 10 : 7);
    snprintf(name, sizeof name, "link-%d-%d", getpid(), c->id);
    put_string(b, name), put_uint(b, 0), put_bool(b, c->sends ? ROLE_SENDER : ROLE_RECEIVER);
    put_ubyte(b, opt.settled ? 1 : 0), put_ubyte(b, opt.second ? 1 : 0);
    size_t terminus = open_list(b, SOURCE, 1);
    if (c->sends) put_null(b); else put_string(b, opt.recv_address);
    close_list(b, terminus), terminus = open_list(b, TARGET, 1);
    if (c->sends) put_string(b, opt.send_address); else put_null(b);
    close_list(b, terminus);
    if (c->sends) put_null(b), put_null(b), put_uint(b, 0); // initial-delivery-count
    close_list(b, list), close_frame(b, frame);
}

static void write_sasl_init(Connection *c) {
    Buffer *b = &c->out, response = {0};
    size_t frame = open_frame(b, SASL_FRAME), list = open_list(b, SASL_INIT, 2);
    if (opt.user) {
        put8(&response, 0), put(&response, opt.user, strlen(opt.user));
        put8(&response, 0), put(&response, opt.password, strlen(opt.password));
    }
    put_symbol(b, opt.user ? "PLAIN" : "ANONYMOUS");
    put_variable(b, 0xa0, response.data ? response.data : (uint8_t *)"", response.end);
    close_list(b, list), close_frame(b, frame);
    free(response.data);
}

static void write_credit(Connection *c) {
    Buffer *b = &c->out;
    long left = c->total - c->started;
    c->credit = left < opt.window ? left : opt.window;
    size_t frame = open_frame(b, AMQP_FRAME), list = open_list(b, FLOW, 7);
    put_uint(b, c->next_in), put_uint(b, 0x7fffffff), put_uint(b, c->next_out), put_uint(b, 0x7fffffff);
    put_uint(b, 0), put_uint(b, c->delivery_count), put_uint(b, c->credit);
    close_list(b, list), close_frame(b, frame);
}

static void write_accepted(Connection *c, uint32_t first, uint32_t last) {
    Buffer *b = &c->out;
    size_t frame = open_frame(b, AMQP_FRAME), list = open_list(b, DISPOSITION, 5);
    put_bool(b, ROLE_RECEIVER), put_uint(b, first), put_uint(b, last), put_bool(b, !opt.await_answer);
    put(b, (uint8_t[]){0x00, 0x53, ACCEPTED, 0x45}, 4);
    close_list(b, list), close_frame(b, frame);
}

static void flush_accepted(Connection *c) {
    if (c->ack_count) write_accepted(c, c->ack_first, c->ack_first + c->ack_count - 1);
    c->ack_count = 0;
}

static void write_transfer(Connection *c) {
    uint8_t head[40], *p = head + 8;
    number_message(c->next_out);
    // handle 0, delivery-id, delivery-tag, message-format 0, settled
    memcpy(p, (uint8_t[]){0x00, 0x53, TRANSFER, 0xc0, 0, 5, 0x43, 0x70}, 8), p += 8;
    store32(p, c->next_out), p += 4;
    *p++ = 0xa0, *p++ = 4;
    store32(p, c->next_out), p += 4;
    *p++ = 0x43, *p++ = opt.settled ? 0x41 : 0x42;
    head[12] = p - head - 13;
    store32(head, (p - head) + message.end);
    memcpy(head + 4, (uint8_t[]){2, AMQP_FRAME, 0, 0}, 4);
    put(&c->out, head, p - head);
    put(&c->out, message.data, message.end);
}

// When message n of this sender is meant to leave: at once, or at its place in the offered rate.
static double intended_s(const Connection *c, long n) {
    return opt.rate > 0 ? started_s + (double)(n * opt.senders + c->id) / opt.rate : clock_s;
}

// Send what window, credit and rate allow.
static void pump(Connection *c) {
    if (!c->sends || c->phase != ATTACHED || started_s == 0) return;
    while (c->started < c->total && c->credit > 0 && c->peer_window > 0 && c->outstanding < opt.window &&
           live(&c->out) < 1 << 18) {
        double due = intended_s(c, c->started);
        if (due > clock_s) break;
        write_transfer(c);
        c->started_at[c->started++] = due;
        c->next_out++, c->delivery_count++, c->credit--, c->peer_window--;
        if (opt.settled) c->done++; else c->outstanding++;
    }
}

// Count deliveries first..last as settled, each of which must be under way.
static void settle(Connection *c, uint32_t first, uint32_t last) {
    for (uint32_t id = first;; id++) {
        uint32_t n = id - (c->sends ? 0 : c->first_in);
        if (n >= (uint32_t)c->started || c->started_at[n] < 0)
            die(EXIT_PROTOCOL, "connection %d: delivery %u settled twice, or never begun", c->id, id);
        if (c->sends || opt.senders == 0) latencies_us[latency_count++] = (clock_s - c->started_at[n]) * 1e6;
        c->started_at[n] = -1;
        c->done++, c->outstanding--;
        if (id == last) return;
    }
}

// Here begins: frames in.

static void on_transfer(Connection *c, const Performative *p) {
    bool more = number(p->field[5], 0), settled = number(p->field[4], 0);
    uint32_t id = p->field[1] ? number(p->field[1], 0) : c->partial_id;
    if (c->started == 0) c->first_in = id;
    c->next_in++, c->partial_id = id;
    if (more) return;
    if (c->started >= c->total) die(EXIT_PROTOCOL, "connection %d: more deliveries than credit", c->id);
    c->started_at[c->started++] = clock_s;
    c->delivery_count++, c->credit--, c->outstanding++;
    if (settled) {
        settle(c, id, id);
    } else if (opt.individual) {
        write_accepted(c, id, id);
    } else {
        if (c->ack_count && c->ack_first + c->ack_count != id) flush_accepted(c);
        if (c->ack_count++ == 0) c->ack_first = id;
    }
    if (!settled && !opt.await_answer) settle(c, id, id);
    bool more_wanted = c->started < c->total && c->credit <= opt.window / 2;
    if (c->ack_count >= 100 || more_wanted) flush_accepted(c);
    if (more_wanted) write_credit(c);
}

static void on_disposition(Connection *c, const Performative *p, const uint8_t *end) {
    // A sender hears from receivers and the other way round; the rest is about no delivery of this link.
    if (number(p->field[0], 0) != (c->sends ? ROLE_RECEIVER : ROLE_SENDER)) return;
    uint32_t first = number(p->field[1], 0), last = number(p->field[2], first);
    uint8_t outcome = outcome_code(p->field[4]);
    if (outcome != ACCEPTED)
        die(EXIT_OUTCOME, "connection %d: deliveries %u to %u came to outcome 0x%02x, not accepted: %s", c->id, first, last,
            outcome, p->field[4] ? readable(p->field[4], end) : "none");
    if (!number(p->field[3], 0))
        die(EXIT_OUTCOME, "connection %d: deliveries %u to %u are not settled by the broker's answer", c->id, first, last);
    settle(c, first, last);
}

static void on_flow(Connection *c, const Performative *p) {
    c->peer_window = number(p->field[0], 0) + number(p->field[1], 0) - c->next_out;
    if (c->sends && p->field[4]) // 2.6.7: credit is relative to the receiver's view of delivery-count
        c->credit = (int32_t)(number(p->field[5], 0) + number(p->field[6], 0) - c->delivery_count);
}

static void on_sasl_frame(Connection *c, const Performative *p) {
    if (p->code == SASL_MECHANISMS) {
        write_sasl_init(c);
    } else if (p->code == SASL_OUTCOME) {
        if (number(p->field[0], 255) != 0) die(EXIT_PEER_CLOSED, "connection %d: SASL refused", c->id);
        c->phase = OPENING;
        write_open(c);
    }
}

static void on_frame(Connection *c, const uint8_t *frame, const uint8_t *end) {
    const uint8_t *body = frame + frame[4] * 4;
    if (body >= end) return; // empty: a sign of life
    Performative p = decode_performative(body, end);
    if (frame[5] == SASL_FRAME) {
        on_sasl_frame(c, &p);
        return;
    }
    switch (p.code) {
    case OPEN:
        if (message.end + 64 > number(p.field[2], UINT32_MAX))
            die(EXIT_USAGE, "the message does not fit into one frame of the broker");
        break;
    case BEGIN:
        c->next_in = number(p.field[1], 0);
        c->peer_window = number(p.field[2], 0);
        break;
    case ATTACH:
        if (!c->sends) c->delivery_count = number(p.field[9], 0);
        c->phase = ATTACHED;
        break;
    case FLOW: on_flow(c, &p); break;
    case TRANSFER: on_transfer(c, &p); break;
    case DISPOSITION: on_disposition(c, &p, end); break;
    case CLOSE:
        if (c->phase == CLOSING && !p.field[0]) {
            c->phase = CLOSED;
            break;
        } // fall through
    case DETACH: case END:
        die(EXIT_PEER_CLOSED, "connection %d: the broker ended it: %s", c->id, readable(body, end));
    }
}

static void on_bytes(Connection *c) {
    for (;;) {
        const uint8_t *p = c->in.data + c->in.start;
        if (live(&c->in) < 8) break;
        bool header = c->phase == SASL_HEADER || (c->phase == OPENING && !c->header_seen);
        if (header) {
            if (memcmp(p, "AMQP", 4)) die(EXIT_PROTOCOL, "connection %d: the answer is not AMQP", c->id);
            if (c->phase == SASL_HEADER) c->phase = SASL; else c->header_seen = true;
            consume(&c->in, 8);
            continue;
        }
        size_t size = load32(p);
        if (size < 8 || p[4] < 2) die(EXIT_PROTOCOL, "connection %d: a frame of %zu bytes", c->id, size);
        if (live(&c->in) < size) break;
        on_frame(c, p, p + size);
        consume(&c->in, size);
    }
    flush_accepted(c);
}

// Here begins: the loop.

static Connection *connect_one(int id, bool sends, long total) {
    Connection *c = must_alloc(1, sizeof *c);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int one = 1, error = getaddrinfo(opt.host, opt.port, &hints, &found);
    if (error) die(EXIT_USAGE, "%s: %s", opt.host, gai_strerror(error));
    *c = (Connection){.id = id, .sends = sends, .total = total, .last_write_s = clock_s};
    c->started_at = must_alloc(total, sizeof *c->started_at);
    c->fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, found->ai_addr, found->ai_addrlen))
        die(EXIT_PEER_CLOSED, "%s:%s: %s", opt.host, opt.port, strerror(errno));
    freeaddrinfo(found);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    put(&c->out, "AMQP\3\1\0\0", 8);
    return c;
}

static void read_some(Connection *c) {
    static uint8_t chunk[1 << 18];
    ssize_t n = read(c->fd, chunk, sizeof chunk);
    if (n > 0) {
        put(&c->in, chunk, n);
        on_bytes(c);
    } else if (n == 0 && c->phase == CLOSING) {
        c->phase = CLOSED;
    } else if (n == 0) {
        die(EXIT_PEER_CLOSED, "connection %d: end of stream", c->id);
    } else if (errno != EAGAIN) {
        die(EXIT_PEER_CLOSED, "connection %d: %s", c->id, strerror(errno));
    }
}

static void write_some(Connection *c) {
    if (!live(&c->out)) return;
    ssize_t n = write(c->fd, c->out.data + c->out.start, live(&c->out));
    if (n > 0) {
        consume(&c->out, n);
        c->last_write_s = clock_s;
    } else if (n < 0 && errno != EAGAIN) {
        die(EXIT_PEER_CLOSED, "connection %d: %s", c->id, strerror(errno));
    }
}

// One turn over all connections: wait for bytes, for `wait_s` at most, then read, send and write.
static void turn(Connection **all, int n, double wait_s, int extra_fd, bool *extra_ready) {
    static struct pollfd *fds;
    static int capacity;
    if (n + 1 > capacity) {
        capacity = n + 1;
        fds = realloc(fds, capacity * sizeof *fds);
        if (!fds) die(EXIT_PROTOCOL, "out of memory");
    }
    for (int i = 0; i < n; i++) {
        bool open = all[i]->phase != CLOSED;
        pump(all[i]); // before the wait, since output is made in portions
        fds[i] = (struct pollfd){open ? all[i]->fd : -1, POLLIN | (live(&all[i]->out) ? POLLOUT : 0), 0};
    }
    fds[n] = (struct pollfd){extra_fd, POLLIN, 0};
    struct timespec wait = {(time_t)wait_s, (long)((wait_s - (time_t)wait_s) * 1e9)};
    if (ppoll(fds, n + 1, &wait, NULL) < 0 && errno != EINTR) die(EXIT_PROTOCOL, "poll: %s", strerror(errno));
    clock_s = now_s();
    if (extra_ready) *extra_ready = fds[n].revents != 0;
    for (int i = 0; i < n; i++) {
        if (fds[i].revents & (POLLIN | POLLHUP | POLLERR)) read_some(all[i]);
        pump(all[i]); // and after it, so that an answer's place in the window is used in the same turn
        if (all[i]->phase == ATTACHED && clock_s - all[i]->last_write_s > 20)
            put(&all[i]->out, (uint8_t[]){0, 0, 0, 8, 2, 0, 0, 0}, 8);
        if (all[i]->phase != CLOSED) write_some(all[i]);
    }
}

// Take leave properly: bytes still unread at close() would reset the connection and lose our last dispositions.
static void close_all(Connection **all, int n) {
    double deadline = now_s() + 5;
    for (int i = 0; i < n; i++) {
        put(&all[i]->out, (uint8_t[]){0, 0, 0, 12, 2, 0, 0, 0, 0x00, 0x53, CLOSE, 0x45}, 12);
        all[i]->phase = CLOSING;
    }
    for (int open = n; open && clock_s < deadline;) {
        turn(all, n, 0.1, -1, NULL);
        open = 0;
        for (int i = 0; i < n; i++) open += all[i]->phase != CLOSED;
    }
}

static void wait_until_attached(Connection **all, int n) {
    double deadline = now_s() + opt.stall_s;
    for (int ready = 0; ready < n;) {
        turn(all, n, 0.1, -1, NULL);
        ready = 0;
        for (int i = 0; i < n; i++) ready += all[i]->phase >= ATTACHED;
        if (ready < n && clock_s > deadline) die(EXIT_STALLED, "%d of %d links attached", ready, n);
    }
}

static int hold_idle(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    Connection **all = must_alloc(opt.idle, sizeof *all);
    clock_s = now_s();
    for (int n = 0; n < opt.idle;) { // in steps below the usual listen backlog of 100
        for (int step = 0; step < 50 && n < opt.idle; step++, n++) all[n] = connect_one(n, false, 0);
        wait_until_attached(all, n);
    }
    printf("holding %d connections\n", opt.idle);
    fflush(stdout);
    for (bool done = false; !done;) {
        bool ready;
        char bytes[64];
        turn(all, opt.idle, 5, STDIN_FILENO, &ready);
        done = ready && read(STDIN_FILENO, bytes, sizeof bytes) <= 0;
    }
    close_all(all, opt.idle);
    return 0;
}

// Here begins: the report.

static double process_cpu_s(int pid) {
    char path[64], line[2048];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = pid ? fopen(path, "r") : NULL;
    if (!f) return 0;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    unsigned long user = 0, system = 0; // fields 14 and 15 of proc(5), counted after the name in parentheses
    char *after_name = strrchr(line, ')');
    if (after_name)
        sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    return (double)(user + system) / sysconf(_SC_CLK_TCK);
}

static double own_cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

// The smallest latency that at least `share` of all do not exceed.
static double percentile_us(double share) {
    long n = (long)(share * latency_count + 0.999999) - 1;
    return latencies_us[n < 0 ? 0 : n];
}

typedef struct {
    double seconds, send_s, recv_s, client_cpu_s, broker_cpu_s;
} Measured;

static void report(Measured m) {
    double send_rate = m.send_s ? opt.count / m.send_s : 0, recv_rate = m.recv_s ? opt.count / m.recv_s : 0;
    double p[] = {0, 0, 0, 0, 0};
    if (latency_count) {
        qsort(latencies_us, latency_count, sizeof *latencies_us, by_value);
        double shares[] = {0.5, 0.9, 0.99, 0.999, 1};
        for (int i = 0; i < 5; i++) p[i] = percentile_us(shares[i]);
    }
    double client_us = m.client_cpu_s * 1e6 / opt.count, broker_us = m.broker_cpu_s * 1e6 / opt.count;
    if (opt.json)
        printf("{\"mode\": \"%s\", \"count\": %ld, \"size\": %d, \"seconds\": %.4f, \"send_rate\": %.1f, "
               "\"recv_rate\": %.1f, \"client_us_per_message\": %.3f, \"broker_us_per_message\": %.3f, "
               "\"broker_cpu_cores\": %.3f, \"latency_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, "
               "\"p99.9\": %.1f, \"max\": %.1f}}\n",
               opt.mode, opt.count, opt.size, m.seconds, send_rate, recv_rate, client_us, broker_us,
               m.broker_cpu_s / m.seconds, p[0], p[1], p[2], p[3], p[4]);
    else
        printf("%s: %ld messages of %d bytes in %.2f s, sent %.0f/s, received %.0f/s, CPU a message: client %.2f us, "
               "broker %.2f us (%.2f cores); latency us: p50 %.0f, p90 %.0f, p99 %.0f, p99.9 %.0f, max %.0f\n",
               opt.mode, opt.count, opt.size, m.seconds, send_rate, recv_rate, client_us, broker_us,
               m.broker_cpu_s / m.seconds, p[0], p[1], p[2], p[3], p[4]);
}

// Messages of connection i out of n, so that together they are opt.count.
static long share(int i, int n) { return opt.count / n + (i < opt.count % n); }

static int drive(void) {
    int n = opt.senders + opt.receivers;
    Connection **all = must_alloc(n, sizeof *all);
    Measured m = {0};
    build_message();
    latencies_us = must_alloc(opt.count, sizeof *latencies_us);
    clock_s = now_s();
    for (int i = 0; i < opt.senders; i++) all[i] = connect_one(i, true, share(i, opt.senders));
    for (int i = opt.senders; i < n; i++) all[i] = connect_one(i, false, share(i - opt.senders, opt.receivers));
    wait_until_attached(all, n);

    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); // ns: the usual 50 us would count as latency
    double broker_cpu_s = process_cpu_s(opt.broker_pid), client_cpu_s = own_cpu_s();
    started_s = clock_s = now_s();
    for (int i = opt.senders; i < n; i++) write_credit(all[i]);
    double progress_s = started_s;
    for (long before = -1;;) {
        long sent = 0, received = 0;
        double wait_s = 1;
        for (int i = 0; i < n; i++) {
            *(all[i]->sends ? &sent : &received) += all[i]->done;
            if (opt.rate > 0 && all[i]->sends && all[i]->started < all[i]->total) {
                double due_in = intended_s(all[i], all[i]->started) - now_s();
                wait_s = due_in < 0 ? 0 : due_in < wait_s ? due_in : wait_s;
                // Late because the broker holds us back: only its bytes help.
                if (due_in < 0 && (all[i]->credit <= 0 || all[i]->outstanding >= opt.window)) wait_s = 0.01;
            }
        }
        if (opt.senders && !m.send_s && sent == opt.count) m.send_s = clock_s - started_s;
        if (opt.receivers && !m.recv_s && received == opt.count) m.recv_s = clock_s - started_s;
        if ((!opt.senders || m.send_s) && (!opt.receivers || m.recv_s)) break;
        if (sent + received != before) before = sent + received, progress_s = clock_s;
        if (clock_s - progress_s > opt.stall_s)
            die(EXIT_STALLED, "no progress: %ld sends accepted, %ld received and settled", sent, received);
        turn(all, n, wait_s, -1, NULL);
    }
    m.seconds = clock_s - started_s;
    m.broker_cpu_s = process_cpu_s(opt.broker_pid) - broker_cpu_s;
    m.client_cpu_s = own_cpu_s() - client_cpu_s;
    close_all(all, n);
    report(m);
    return 0;
}

int main(int argc, char **argv) {
    for (int o; (o = getopt(argc, argv, "m:I:h:p:u:P:a:A:n:s:rS:R:w:o:xi21B:T:j")) != -1;) {
        switch (o) {
        case 'm': opt.mode = optarg; break;
        case 'I': opt.idle = atoi(optarg); break;
        case 'h': opt.host = optarg; break;
        case 'p': opt.port = optarg; break;
        case 'u': opt.user = optarg; break;
        case 'P': opt.password = optarg; break;
        case 'a': opt.send_address = optarg; break;
        case 'A': opt.recv_address = optarg; break;
        case 'n': opt.count = atol(optarg); break;
        case 's': opt.size = atoi(optarg); break;
        case 'r': opt.rich = true; break;
        case 'S': opt.senders = atoi(optarg); break;
        case 'R': opt.receivers = atoi(optarg); break;
        case 'w': opt.window = atoi(optarg); break;
        case 'o': opt.rate = atof(optarg); break;
        case 'x': opt.settled = true; break;
        case 'i': opt.individual = true; break;
        case '2': opt.second = opt.await_answer = true; break;
        case '1': opt.await_answer = true; break;
        case 'B': opt.broker_pid = atoi(optarg); break;
        case 'T': opt.stall_s = atof(optarg); break;
        case 'j': opt.json = true; break;
        default: fputs(USAGE, stderr); return EXIT_USAGE;
        }
    }
    if (!opt.recv_address) opt.recv_address = opt.send_address;
    if (!strcmp(opt.mode, "send")) opt.receivers = 0;
    if (!strcmp(opt.mode, "recv")) opt.senders = 0;
    bool known = !strcmp(opt.mode, "send") || !strcmp(opt.mode, "recv") || !strcmp(opt.mode, "both");
    if (optind < argc || !known || opt.count < 1 || opt.size < 1 || opt.window < 1 || opt.senders < 0 || opt.receivers < 0) {
        fputs(USAGE, stderr);
        return EXIT_USAGE;
    }
    return opt.idle > 0 ? hold_idle() : drive();
}
