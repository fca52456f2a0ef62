// flood: peers that send without a pause.
//
// Each connection shakes hands and attaches its links, and then writes frames of one kind as fast as the socket takes
// them, until stdin closes. What the broker answers is read and dropped. A connection that the broker ends is opened again at once. One
// thread, poll(2), no library. It connects to the loopback interface and to nothing else.
//
// Order of this file: options, peers, frames, the kinds, the loop, the report. Bytes are in amqp.h, TLS and WebSocket in
// wire.h. Sections quoted are those of the AMQP 1.0 core specification (part.section).

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "amqp.h"
#include "wire.h"

static const char USAGE[] =
    "usage: flood -k KIND -p PORT [options]    send frames of a kind until stdin closes, then report as JSON\n"
    "  -n COUNT                connections (1)\n"
    "  -E                      encrypted: within TLS, whatever the certificate\n"
    "  -W                      over WebSocket, a frame for each AMQP frame\n"
    "  -u USER  -P PASSWORD    SASL PLAIN (default: ANONYMOUS)\n"
    "  -a ADDRESS              queue (q)\n"
    "  -t TOKEN                what kind `tokens` puts\n"
    "  -x                      do not read what the broker answers\n"
    "  -T SECONDS              stop after so long, too\n"
    "  -c COUNT                a connection: write so many frames or a few more, close, and wait until the broker has\n"
    "                          taken them\n"
    "kinds: ";

static struct {
    const char *kind, *user, *password, *address, *token;
    int port, connections;
    long count;
    double seconds;
    bool encrypted, websocket, deaf;
} opt = {.password = "", .address = "q", .token = "", .connections = 1};

// Where the flood comes from: the broker counts refusals by address, and the others have 127.0.0.1.
static const char SOURCE_ADDRESS[] = "127.0.0.9";

// AMQP bytes that are made at a time; the next ones are made when all of them are written.
enum { BLOCK_BYTES = 1 << 16 };

// How long a hand-shake of TLS or WebSocket may take: a broker that is late is what this is about.
enum { HANDSHAKE_S_MAX = 20 };

// Here begins: peers.

typedef struct {
    Wire wire; // fd -1: not connected
    Buffer in, out;        // AMQP bytes; `in` until it is ready
    bool ready;            // the broker has answered its begin and its attaches
    uint32_t answered;     // attaches, of those
    uint32_t next_id;      // of the next delivery
    uint32_t granted;      // deliveries that were ever asked for
    uint32_t named;        // links that were ever named
    long frames_in_block;  // of `out`, counted when it is written
    size_t block_bytes;    // of `out`, when it was made
    long written;          // frames, where their count is limited
    bool closing, done;    // all of them are written; the broker has taken them
} Peer;

static long frames, connections, ended, last_words_size;
static unsigned long long bytes_written, bytes_read, bytes_untaken; // untaken: written, and not read by the broker
static uint8_t last_words[200]; // of the broker, to a connection that it ended

// Here begins: frames. Each function appends one.

static size_t begin_frame(Peer *p, uint8_t channel, uint8_t code, uint8_t count, size_t *list) {
    size_t frame = open_frame(&p->out, AMQP_FRAME);
    p->out.data[frame + 7] = channel;
    *list = open_list(&p->out, code, count);
    p->frames_in_block++;
    return frame;
}

static void end_frame(Peer *p, size_t frame, size_t list) {
    close_list(&p->out, list), close_frame(&p->out, frame);
}

static void put_nulls(Buffer *b, int count) {
    while (count-- > 0) put_null(b);
}

static void write_sasl(Peer *p) {
    Buffer *b = &p->out, response = {0};
    put(b, "AMQP\3\1\0\0", 8);
    size_t frame = open_frame(b, SASL_FRAME), list = open_list(b, SASL_INIT, 2);
    if (opt.user) {
        put8(&response, 0), put(&response, opt.user, strlen(opt.user));
        put8(&response, 0), put(&response, opt.password, strlen(opt.password));
    }
    put_symbol(b, opt.user ? "PLAIN" : "ANONYMOUS");
    put_variable(b, 0xa0, response.data ? response.data : (uint8_t *)"", response.end);
    close_list(b, list), close_frame(b, frame);
    free(response.data);
    put(b, "AMQP\0\1\0\0", 8);
}

static void write_open(Peer *p) {
    size_t list, frame = begin_frame(p, 0, OPEN, 4, &list);
    put_string(&p->out, "flood"), put_string(&p->out, "localhost"), put_uint(&p->out, 1 << 18);
    put(&p->out, (uint8_t[]){0x60, 0x00, 0xff}, 3); // channel-max
    end_frame(p, frame, list);
}

static void write_close(Peer *p) {
    size_t list, frame = begin_frame(p, 0, CLOSE, 0, &list);
    end_frame(p, frame, list);
}

static void write_begin(Peer *p, uint8_t channel) {
    size_t list, frame = begin_frame(p, channel, BEGIN, 4, &list);
    put_null(&p->out), put_uint(&p->out, 0), put_uint(&p->out, 0x7fffffff), put_uint(&p->out, 0x7fffffff);
    end_frame(p, frame, list);
}

static void write_end(Peer *p, uint8_t channel) {
    size_t list, frame = begin_frame(p, channel, END, 0, &list);
    end_frame(p, frame, list);
}

static void put_address(Buffer *b, const char *address) {
    if (address) put_string(b, address); else put_null(b);
}

static void write_attach(Peer *p, uint32_t handle, bool role, const char *source, const char *target) {
    Buffer *b = &p->out;
    char name[32];
    snprintf(name, sizeof name, "flood-%u", p->named++);
    size_t list, frame = begin_frame(p, 0, ATTACH, role == ROLE_SENDER ? 10 : 7, &list);
    put_string(b, name), put_uint(b, handle), put_bool(b, role), put_null(b), put_null(b);
    size_t terminus = open_list(b, SOURCE, 1);
    put_address(b, source);
    close_list(b, terminus), terminus = open_list(b, TARGET, 1);
    put_address(b, target);
    close_list(b, terminus);
    if (role == ROLE_SENDER) put_null(b), put_null(b), put_uint(b, 0); // initial-delivery-count
    end_frame(p, frame, list);
}

static void write_detach(Peer *p, uint32_t handle) {
    size_t list, frame = begin_frame(p, 0, DETACH, 2, &list);
    put_uint(&p->out, handle), put_bool(&p->out, true);
    end_frame(p, frame, list);
}

// A flow of the session, or of the link with this handle, with credit counted from its first delivery.
static void write_flow(Peer *p, int64_t handle, uint32_t credit, bool echo) {
    Buffer *b = &p->out;
    size_t list, frame = begin_frame(p, 0, FLOW, 10, &list);
    put_uint(b, 0), put_uint(b, 0x7fffffff), put_uint(b, 0), put_uint(b, 0x7fffffff);
    if (handle < 0) put_nulls(b, 3); else put_uint(b, handle), put_uint(b, 0), put_uint(b, credit);
    put_null(b), put_null(b), put_bool(b, echo);
    end_frame(p, frame, list);
}

static void write_disposition(Peer *p, bool role, uint32_t last, uint8_t outcome) {
    Buffer *b = &p->out;
    size_t list, frame = begin_frame(p, 0, DISPOSITION, 5, &list);
    put_bool(b, role), put_uint(b, 0), put_uint(b, last), put_bool(b, false);
    put(b, (uint8_t[]){0x00, 0x53, outcome, 0x45}, 4);
    end_frame(p, frame, list);
}

static void write_transfer(Peer *p, bool settled, const void *message, size_t size) {
    Buffer *b = &p->out;
    size_t list, frame = begin_frame(p, 0, TRANSFER, 5, &list);
    uint8_t tag[4];
    store32(tag, p->next_id);
    put_uint(b, 0), put_uint(b, p->next_id++), put_variable(b, 0xa0, tag, sizeof tag);
    put_uint(b, 0), put_bool(b, settled);
    close_list(b, list);
    put(b, message, size);
    close_frame(b, frame);
}

// A request of an operation: its application properties are `operation` and these texts, its value is encoded.
static void write_request(Peer *p, const char *operation, const char *texts[][2], int count, const Buffer *value) {
    Buffer m = {0}, items = {0};
    size_t list = open_list(&m, 0x73, 5); // properties: message-id, user-id, to, subject, reply-to
    put_string(&m, "1"), put_nulls(&m, 3), put_string(&m, "answers");
    close_list(&m, list);
    put8(&items, 2 + 2 * count), put_string(&items, "operation"), put_string(&items, operation);
    for (int i = 0; i < count; i++) put_string(&items, texts[i][0]), put_string(&items, texts[i][1]);
    put(&m, (uint8_t[]){0x00, 0x53, 0x74}, 3), put_variable(&m, 0xc1, items.data, items.end);
    put(&m, (uint8_t[]){0x00, 0x53, 0x77}, 3), put(&m, value->data, value->end);
    write_transfer(p, false, m.data, m.end);
    free(m.data), free(items.data);
}

// Links to a node that answers: handle 0 asks, handle 1 has the answers.
static void write_request_links(Peer *p, const char *node) {
    write_attach(p, 0, ROLE_SENDER, "answers", node);
    write_attach(p, 1, ROLE_RECEIVER, node, "answers");
    write_flow(p, 1, 0x7fffffff, false);
}

// Here begins: the kinds. What one sends when it is connected, and what it repeats.

static void repeat_begin_end(Peer *p) { write_begin(p, 1), write_end(p, 1); }

// Refused for a missing claim, or for a missing queue. Some at a time: one that is detached in the same read is not even
// refused.
static void repeat_attaches(Peer *p) {
    enum { LINKS = 100 };
    for (int i = 0; i < LINKS; i += 2) {
        write_attach(p, i, ROLE_RECEIVER, opt.address, NULL);
        write_attach(p, i + 1, ROLE_SENDER, NULL, opt.address);
    }
    for (int i = 0; i < LINKS; i++) write_detach(p, i);
}

static void repeat_dispositions(Peer *p) {
    write_disposition(p, ROLE_RECEIVER, UINT32_MAX, ACCEPTED);
    write_disposition(p, ROLE_SENDER, UINT32_MAX, ACCEPTED);
}

static void prepare_receiver(Peer *p) { write_attach(p, 0, ROLE_RECEIVER, opt.address, NULL); }

// Some deliveries, and then each of these claims all of them; half of all ids is the widest range there is.
static void repeat_unsettled(Peer *p) {
    enum { DELIVERIES = 100, DISPOSITIONS = 200, RELEASED = 0x26 };
    write_flow(p, 0, p->granted += DELIVERIES, false);
    for (int i = 0; i < DISPOSITIONS; i++) write_disposition(p, i & 1, 0x7fffffff, RELEASED);
}

static void repeat_empty_frames(Peer *p) {
    put(&p->out, (uint8_t[]){0, 0, 0, 8, 2, AMQP_FRAME, 0, 0}, 8);
    p->frames_in_block++;
}

static void repeat_session_flows(Peer *p) { write_flow(p, -1, 0, true); }

static void prepare_cbs_receiver(Peer *p) { write_attach(p, 0, ROLE_RECEIVER, "$cbs", "answers"); }
static void repeat_link_flows(Peer *p) { write_flow(p, 0, 10, true); }

static void prepare_tokens(Peer *p) { write_request_links(p, "$cbs"); }

static void repeat_tokens(Peer *p) {
    char audience[300];
    snprintf(audience, sizeof audience, "sb://localhost/%s", opt.address);
    const char *texts[][2] = {{"type", "servicebus.windows.net:sastoken"}, {"name", audience}};
    Buffer token = {0};
    put_string(&token, opt.token);
    write_request(p, "put-token", texts, 2, &token);
    free(token.data);
}

static void prepare_peeks(Peer *p) {
    char node[300];
    snprintf(node, sizeof node, "%s/$management", opt.address);
    write_request_links(p, node);
}

static void repeat_peeks(Peer *p) {
    Buffer items = {0}, value = {0};
    put8(&items, 4);
    put_string(&items, "from-sequence-number"), put(&items, (uint8_t[]){0x55, 0}, 2);
    put_string(&items, "message-count"), put(&items, (uint8_t[]){0x54, 32}, 2);
    put_variable(&value, 0xc1, items.data, items.end);
    write_request(p, "com.microsoft:peek-message", NULL, 0, &value);
    free(items.data), free(value.data);
}

static void repeat_cbs_links(Peer *p) {
    write_attach(p, 0, ROLE_SENDER, "answers", "$cbs"), write_detach(p, 0);
}

static const uint8_t EMPTY_MESSAGE[] = {0x00, 0x53, 0x75, 0xa0, 0};

static void prepare_sender(Peer *p) { write_attach(p, 0, ROLE_SENDER, NULL, opt.address); }
static void repeat_settled(Peer *p) { write_transfer(p, true, EMPTY_MESSAGE, sizeof EMPTY_MESSAGE); }
static void repeat_sends(Peer *p) { write_transfer(p, false, EMPTY_MESSAGE, sizeof EMPTY_MESSAGE); }

typedef struct {
    const char *name;
    void (*prepare)(Peer *); // NULL: nothing
    void (*repeat)(Peer *);
} Kind;

static const Kind KINDS[] = {
    {"begin-end", NULL, repeat_begin_end},
    {"attaches", NULL, repeat_attaches},
    {"dispositions", NULL, repeat_dispositions},
    {"unsettled", prepare_receiver, repeat_unsettled},
    {"empty-frames", NULL, repeat_empty_frames},
    {"session-flows", NULL, repeat_session_flows},
    {"link-flows", prepare_receiver, repeat_link_flows},
    {"cbs-flows", prepare_cbs_receiver, repeat_link_flows},
    {"cbs-links", NULL, repeat_cbs_links},
    {"tokens", prepare_tokens, repeat_tokens},
    {"peeks", prepare_peeks, repeat_peeks},
    {"settled-sends", prepare_sender, repeat_settled},
    {"sends", prepare_sender, repeat_sends},
};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

static const Kind *kind;

// Here begins: the loop.

// Bytes, counted as the socket has them.
static size_t unwritten(const Peer *p) { return live(&p->out) + live(&p->wire.framed_out); }

// Count what is written of a block: where frames are of several sizes, about.
static void count_frames(Peer *p) {
    if (p->block_bytes) frames += p->frames_in_block * (double)(p->block_bytes - unwritten(p)) / p->block_bytes;
    p->frames_in_block = p->block_bytes = 0;
}

static int is_local_port(const Peer *peers, unsigned port) {
    for (int i = 0; i < opt.connections; i++) {
        struct sockaddr_in own;
        socklen_t size = sizeof own;
        if (peers[i].wire.fd < 0 || getsockname(peers[i].wire.fd, (struct sockaddr *)&own, &size)) continue;
        if (ntohs(own.sin_port) == port) return 1;
    }
    return 0;
}

// Bytes on their way to the broker, in the buffers of both sockets; not those of connections that are closed. What
// moves from one to the other meanwhile is not counted, nor is any byte twice: of ours, those that were never sent.
static unsigned long long count_untaken(const Peer *peers) {
    unsigned long long sum = 0;
    FILE *f = fopen("/proc/net/tcp", "r");
    char line[512];
    unsigned port, from, from_port, received;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%*d: %*8x:%4x %8x:%4x %*x %*8x:%8x", &port, &from, &from_port, &received) == 4)
            if (port == (unsigned)opt.port && from == inet_addr(SOURCE_ADDRESS) && is_local_port(peers, from_port))
                sum += received;
    if (f) fclose(f);
    for (int i = 0, unsent; i < opt.connections; i++)
        if (peers[i].wire.fd >= 0 && !ioctl(peers[i].wire.fd, SIOCOUTQNSD, &unsent)) sum += unsent;
    return sum;
}

static void forget(Peer *p) {
    count_frames(p);
    wire_close(&p->wire);
    empty(&p->in), empty(&p->out);
    p->wire.fd = -1;
}

static void on_ended(Peer *p) {
    forget(p);
    if (p->closing) p->done = true; else ended++;
}

static void set_time_out(int fd, struct timeval timeout) {
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
}

// Connect and have the first frames ready: clients pipeline, and the answers decide nothing in them.
static void connect_peer(Peer *p) {
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(opt.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    inet_pton(AF_INET, SOURCE_ADDRESS, &from.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    // Else a port that has just been used cannot be used for 60 s, and there are 28,000 of them.
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fd < 0 || bind(fd, (void *)&from, sizeof from) || connect(fd, (void *)&to, sizeof to))
        die(EXIT_PEER_CLOSED, "port %d: %s", opt.port, strerror(errno));
    set_time_out(fd, (struct timeval){HANDSHAKE_S_MAX, 0});
    p->wire.fd = fd;
    connections++;
    const char *failed = opt.encrypted ? wire_encrypt(&p->wire) : NULL;
    if (!failed && opt.websocket) failed = wire_upgrade(&p->wire);
    if (failed) {
        last_words_size = strnlen(failed, sizeof last_words);
        memcpy(last_words, failed, last_words_size);
        on_ended(p);
        return;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    p->next_id = p->granted = p->named = p->answered = 0;
    p->ready = false;
    write_sasl(p), write_open(p), write_begin(p, 0);
    if (kind->prepare) kind->prepare(p);
}

// Look for the answers to begin and attaches in what came.
static void note_answers(Peer *p, const uint8_t *bytes, size_t n) {
    Buffer *b = &p->in;
    put(p->wire.websocket ? &p->wire.framed_in : b, bytes, n);
    if (p->wire.websocket) unframe_input(&p->wire, b);
    while (live(b) >= 8) {
        const uint8_t *frame = b->data + b->start, *body = frame + frame[4] * 4;
        size_t size = memcmp(frame, "AMQP", 4) ? load32(frame) : 8;
        if (live(b) < size) return;
        uint8_t code = size > 11 && frame[5] == AMQP_FRAME ? body[2] : 0;
        p->answered += code == ATTACH;
        p->ready |= (code == BEGIN || code == ATTACH) && p->answered == p->named;
        consume(b, size);
    }
}

// Drop what came; false: the broker has ended the connection.
static bool read_some(Peer *p) {
    static uint8_t chunk[1 << 18];
    ssize_t n;
    do {
        n = wire_read(&p->wire, chunk, sizeof chunk);
        if (n > 0) {
            bytes_read += n;
            if (!p->ready) note_answers(p, chunk, n);
            last_words_size = n < (ssize_t)sizeof last_words ? n : (ssize_t)sizeof last_words;
            memcpy(last_words, chunk + n - last_words_size, last_words_size);
        }
    } while (n > 0 && opt.encrypted); // what TLS keeps decrypted does not wake poll
    return n > 0 || (n < 0 && errno == EAGAIN);
}

// Write what the socket takes, and make the next block when all is written; false: the connection has ended.
static bool write_some(Peer *p) {
    Wire *w = &p->wire;
    Buffer *b = w->websocket ? &w->framed_out : &p->out;
    if (!live(b)) {
        p->written += p->frames_in_block;
        count_frames(p);
        p->closing = opt.count && p->written >= opt.count;
        while (p->ready && !p->closing && live(&p->out) < BLOCK_BYTES) kind->repeat(p);
        if (p->closing) write_close(p);
        if (w->websocket) frame_output(w, &p->out);
        if (w->websocket && p->closing) put_websocket_frame(b, 8, "", 0);
        p->block_bytes = live(b);
    }
    ssize_t n = wire_write(w, b->data + b->start, live(b));
    if (n > 0) consume(b, n), bytes_written += n;
    return n > 0 || errno == EAGAIN;
}

// Whether it has anything to write.
static bool writes(const Peer *p) { return unwritten(p) || (p->ready && !p->closing); }

// Whether it reads what comes.
static bool reads(const Peer *p) { return !opt.deaf || !p->ready || p->closing; }

static void turn_peer(Peer *p, short events) {
    if (p->wire.fd < 0) return;
    bool alive = !(events & POLLERR);
    if (alive && events & (POLLIN | POLLHUP)) alive = read_some(p);
    if (alive && events & POLLOUT && writes(p)) alive = write_some(p);
    if (!alive) on_ended(p);
}

static void flood(void) {
    Peer *peers = must_alloc(opt.connections, sizeof *peers);
    struct pollfd *fds = must_alloc(opt.connections + 1, sizeof *fds);
    for (int i = 0; i < opt.connections; i++) connect_peer(&peers[i]);
    puts("flooding"), fflush(stdout);
    double until_s = opt.seconds > 0 ? now_s() + opt.seconds : 1e300;
    char bytes[64];
    int done;
    fds[opt.connections] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
    do {
        for (int i = 0; i < opt.connections; i++) {
            if (peers[i].wire.fd < 0 && !peers[i].done) connect_peer(&peers[i]);
            fds[i].fd = peers[i].wire.fd;
            fds[i].events = (writes(&peers[i]) ? POLLOUT : 0) | (reads(&peers[i]) ? POLLIN : 0);
        }
        if (poll(fds, opt.connections + 1, 50) < 0 && errno != EINTR) die(EXIT_PROTOCOL, "poll: %s", strerror(errno));
        done = 0;
        for (int i = 0; i < opt.connections; i++) turn_peer(&peers[i], fds[i].revents), done += peers[i].done;
    } while (done < opt.connections && now_s() < until_s && !(fds[opt.connections].revents && read(STDIN_FILENO, bytes, sizeof bytes) <= 0));
    bytes_untaken = count_untaken(peers);
    for (int i = 0; i < opt.connections; i++)
        if (peers[i].wire.fd >= 0) forget(&peers[i]);
}

// Here begins: the report.

static void report(double seconds) {
    for (long i = 0; i < last_words_size; i++)
        if (last_words[i] == '"' || last_words[i] == '\\') last_words[i] = '\'';
    printf("{\"kind\": \"%s\", \"seconds\": %.3f, \"frames\": %ld, \"bytes\": %llu, \"bytes_untaken\": %llu, "
           "\"bytes_read\": %llu, \"connections\": %ld, \"ended\": %ld, \"last_words\": \"%s\"}\n",
           kind->name, seconds, frames, bytes_written, bytes_untaken, bytes_read, connections, ended,
           readable(last_words, last_words + last_words_size));
}

static int usage(void) {
    fputs(USAGE, stderr);
    for (int i = 0; i < KIND_COUNT; i++) fprintf(stderr, "%s%s", KINDS[i].name, i + 1 < KIND_COUNT ? ", " : "\n");
    return EXIT_USAGE;
}

int main(int argc, char **argv) {
    // Its peers stand for other machines, which take no processor from the broker.
    if (nice(19) == -1) perror("nice");
    for (int o; (o = getopt(argc, argv, "k:p:n:EWu:P:a:t:xT:c:")) != -1;) {
        switch (o) {
        case 'k': opt.kind = optarg; break;
        case 'p': opt.port = atoi(optarg); break;
        case 'n': opt.connections = atoi(optarg); break;
        case 'E': opt.encrypted = true; break;
        case 'W': opt.websocket = true; break;
        case 'u': opt.user = optarg; break;
        case 'P': opt.password = optarg; break;
        case 'a': opt.address = optarg; break;
        case 't': opt.token = optarg; break;
        case 'x': opt.deaf = true; break;
        case 'T': opt.seconds = atof(optarg); break;
        case 'c': opt.count = atol(optarg); break;
        default: return usage();
        }
    }
    for (int i = 0; opt.kind && i < KIND_COUNT; i++)
        if (!strcmp(opt.kind, KINDS[i].name)) kind = &KINDS[i];
    if (optind < argc || !kind || opt.connections < 1 || opt.port < 1 || opt.port > 65535) return usage();
    signal(SIGPIPE, SIG_IGN);
    double started_s = now_s();
    flood();
    report(now_s() - started_s);
    return 0;
}
