/* Sends one message to the gateway's socket and forgets it. No library is needed:
 *
 *     cc -O2 -o send send.c
 *     ./send /run/ottla/gateway.sock clicks 'a value'
 *     ./send /run/ottla/gateway.sock clicks 'a value' 'a key'
 *
 * To use it in a program, take message_size, write_message and the few lines of main that send. The socket is a unix
 * datagram: the call waits while the gateway's queue is full, and fails at once if no gateway is there.
 */

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANY_PARTITION = 256, FIXED_BYTES = 28, MOST_TOPIC_BYTES = SHRT_MAX };

static unsigned char *put(unsigned char *at, uint64_t number, int bytes) {
    for (int i = bytes - 1; i >= 0; --i)
        *at++ = (unsigned char)(number >> (8 * i));
    return at;
}

static unsigned char *put_bytes(unsigned char *at, const void *data, size_t size) {
    if (size > 0)
        memcpy(at, data, size);
    return at + size;
}

/* How many bytes a message takes, 0 if it cannot be written. */
static size_t message_size(size_t topic_size, size_t key_size, size_t value_size) {
    if (topic_size < 1 || topic_size > MOST_TOPIC_BYTES || key_size > INT32_MAX || value_size > INT32_MAX)
        return 0;
    uint64_t size = (uint64_t)FIXED_BYTES + topic_size + key_size + value_size;
    return size > INT32_MAX ? 0 : (size_t)size;
}

/* Writes a message of message_size(...) bytes to `out`. An empty key is no key. */
static void write_message(unsigned char *out, size_t size, const char *topic, size_t topic_size, int64_t time_ms,
                          const void *key, size_t key_size, const void *value, size_t value_size) {
    out = put(out, size, 4);
    out = put(out, ANY_PARTITION, 2);
    out = put(out, 0, 2); /* version */
    out = put(out, 0, 2); /* flags */
    out = put(out, topic_size, 2);
    out = put_bytes(out, topic, topic_size);
    out = put(out, (uint64_t)time_ms, 8);
    out = put(out, key_size, 4);
    out = put_bytes(out, key, key_size);
    out = put(out, value_size, 4);
    put_bytes(out, value, value_size);
}

int main(int count, char **arguments) {
    if (count < 4 || count > 5) {
        fprintf(stderr, "usage: %s SOCKET TOPIC VALUE [KEY]\n", arguments[0]);
        return 2;
    }
    const char *path = arguments[1], *topic = arguments[2], *value = arguments[3];
    const char *key = count == 5 ? arguments[4] : "";
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof place.sun_path) {
        fprintf(stderr, "error: the path of the socket is too long: %s\n", path);
        return 2;
    }
    strcpy(place.sun_path, path);
    size_t size = message_size(strlen(topic), strlen(key), strlen(value));
    unsigned char *message = size > 0 ? malloc(size) : NULL;
    if (message == NULL) {
        fprintf(stderr, "error: the topic is empty, or the message is too large\n");
        return 2;
    }
    struct timeval now;
    gettimeofday(&now, NULL);
    int64_t time_ms = (int64_t)now.tv_sec * 1000 + now.tv_usec / 1000;
    write_message(message, size, topic, strlen(topic), time_ms, key, strlen(key), value, strlen(value));
    int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (sender < 0 || sendto(sender, message, size, 0, (struct sockaddr *)&place, sizeof place) != (ssize_t)size) {
        fprintf(stderr, "error: %s: %s\n", path, strerror(errno));
        return 1;
    }
    close(sender);
    free(message);
    return 0;
}
