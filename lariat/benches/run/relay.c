/* The smallest relay in C: fork the server, poll, read, write. The floor for any wrapper that
 * copies bytes. Usage: relay command args...
 *
 * Each direction has a buffer. It is filled when empty and emptied at once; only when the sink is
 * full does the relay wait for it, and the other direction goes on meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

struct way {
    int from, to;
    ssize_t have, sent;
    char bytes[1 << 16];
};

static struct way down, up;

/* Moves what can be moved. Returns 0 when the source has ended or the sink is gone. */
static int move(struct way *w) {
    if (w->sent == w->have) {
        w->sent = 0;
        w->have = read(w->from, w->bytes, sizeof w->bytes);
        if (w->have <= 0) return w->have = 0;
    }
    while (w->sent < w->have) {
        ssize_t done = write(w->to, w->bytes + w->sent, (size_t)(w->have - w->sent));
        if (done < 0) return errno == EAGAIN;
        w->sent += done;
    }
    return 1;
}

static struct pollfd wait_for(const struct way *w) {
    if (w->sent < w->have) return (struct pollfd){w->to, POLLOUT, 0};
    return (struct pollfd){w->from, POLLIN, 0};
}

int main(int argc, char **argv) {
    int in[2], back[2];
    if (argc < 2 || pipe(in) || pipe(back)) return 125;
    pid_t server = fork();
    if (server == 0) {
        dup2(in[0], 0);
        dup2(back[1], 1);
        close(in[0]), close(in[1]), close(back[0]), close(back[1]);
        execvp(argv[1], argv + 1);
        perror(argv[1]);
        _exit(127);
    }
    close(in[0]), close(back[1]);
    signal(SIGPIPE, SIG_IGN);
    fcntl(in[1], F_SETFL, O_NONBLOCK);
    fcntl(1, F_SETFL, O_NONBLOCK);
    down.from = 0, down.to = in[1];
    up.from = back[0], up.to = 1;
    for (;;) {
        struct pollfd watched[2] = {wait_for(&down), wait_for(&up)};
        if (poll(watched, 2, -1) < 0) break;
        if (watched[0].revents && !move(&down)) {
            close(down.to);
            down.from = down.to = -1;
        }
        if (watched[1].revents && !move(&up)) break;
    }
    int status = 0;
    waitpid(server, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
