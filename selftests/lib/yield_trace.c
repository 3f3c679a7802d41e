// SPDX-License-Identifier: GPL-2.0-only
/*
 * To whom do vCPUs yield?  Read from the tracepoint kvm_directed_yield.
 */
#include <ctype.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "yield_trace.h"

#define TRACEFS		"/sys/kernel/tracing"
#define YIELD_EVENT	"events/kvm/kvm_directed_yield"
#define SWITCH_EVENT	"events/sched/sched_switch"

/* KiB per CPU: an event takes less than 100 bytes. */
#define BUFFER_SIZE	"8192"

static void trace_write(struct yield_trace *trace, const char *file,
			const char *value)
{
	char path[256];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", trace->path, file);
	fd = open(path, O_WRONLY | O_TRUNC);
	TEST_ASSERT(fd >= 0, "Failed to open %s", path);
	n = write(fd, value, strlen(value));
	TEST_ASSERT(n == (ssize_t)strlen(value), "Failed to write '%s' to %s",
		    value, path);
	close(fd);
}

/* Why a test that traces yields has to be skipped, or NULL. */
const char *yield_trace_unavailable(void)
{
	if (access(TRACEFS "/instances", W_OK))
		return "tracefs is not mounted at " TRACEFS ", or not writable";
	return NULL;
}

/*
 * Record yields, and with @switches context switches, of all tasks, in a trace
 * instance of this test's own.
 */
void yield_trace_start(struct yield_trace *trace, bool switches)
{
	memset(trace, 0, sizeof(*trace));
	snprintf(trace->path, sizeof(trace->path), TRACEFS "/instances/kvm-%d",
		 getpid());
	TEST_ASSERT(!mkdir(trace->path, 0700), "Failed to create %s",
		    trace->path);

	trace_write(trace, "buffer_size_kb", BUFFER_SIZE);
	trace_write(trace, YIELD_EVENT "/enable", "1");
	if (switches)
		trace_write(trace, SWITCH_EVENT "/enable", "1");
}

/* The PID in "            comm-1234    [001] d..2.  12.345678: event: ..." */
static pid_t parse_pid(const char *line)
{
	const char *p = strstr(line, " [");

	TEST_ASSERT(p, "No CPU in trace line: %s", line);
	while (p > line && isspace(p[-1]))
		p--;
	while (p > line && isdigit(p[-1]))
		p--;
	return atoi(p);
}

static bool parse_event(const char *line, struct yield_trace_event *e)
{
	const char *p;

	memset(e, 0, sizeof(*e));
	p = strstr(line, ": kvm_directed_yield: ");
	if (p) {
		int n = sscanf(p, ": kvm_directed_yield: vcpu_id %d target_id %d target_pid %d",
			       &e->vcpu_id, &e->target_id, &e->target_pid);

		p = strstr(p, " reason ");
		if (p)
			n += sscanf(p, " reason %15s result %d visited %u",
				    e->reason, &e->result, &e->visited);
		TEST_ASSERT(n == 6, "Unknown format of event: %s", line);
		e->type = YIELD_TRACE_YIELD;
		e->pid = parse_pid(line);
		return true;
	}

	if (strstr(line, ": sched_switch: ")) {
		p = strstr(line, " next_pid=");
		TEST_ASSERT(p, "Unknown format of event: %s", line);
		e->type = YIELD_TRACE_SWITCH;
		e->pid = parse_pid(line);
		e->next_pid = atoi(p + strlen(" next_pid="));
		e->sleeps = strstr(line, " prev_state=S ");
		return true;
	}

	return false;
}

static void assert_nothing_lost(struct yield_trace *trace)
{
	char path[256], line[128];
	int cpu, lost;
	FILE *f;

	for (cpu = 0; ; cpu++) {
		snprintf(path, sizeof(path), "%s/per_cpu/cpu%d/stats",
			 trace->path, cpu);
		f = fopen(path, "r");
		if (!f)
			break;
		while (fgets(line, sizeof(line), f)) {
			if (sscanf(line, "overrun: %d", &lost) == 1 ||
			    sscanf(line, "dropped events: %d", &lost) == 1)
				TEST_ASSERT(!lost, "%d events lost on CPU %d",
					    lost, cpu);
		}
		fclose(f);
	}
	TEST_ASSERT(cpu, "No per-CPU statistics in %s", trace->path);
}

/* Stop recording and read the events, in the order in which they happened. */
void yield_trace_stop(struct yield_trace *trace)
{
	struct yield_trace_event e;
	char path[256], line[512];
	int n = 0, capacity = 0;
	FILE *f;

	trace_write(trace, "tracing_on", "0");
	assert_nothing_lost(trace);

	snprintf(path, sizeof(path), "%s/trace", trace->path);
	f = fopen(path, "r");
	TEST_ASSERT(f, "Failed to open %s", path);
	while (fgets(line, sizeof(line), f)) {
		if (!parse_event(line, &e))
			continue;
		if (n == capacity) {
			capacity = capacity ? 2 * capacity : 1024;
			trace->events = realloc(trace->events,
						capacity * sizeof(e));
			TEST_ASSERT(trace->events, "Out of memory");
		}
		trace->events[n++] = e;
	}
	fclose(f);
	trace->end = trace->events + n;
	TEST_ASSERT(!rmdir(trace->path), "Failed to remove %s", trace->path);
	trace->path[0] = '\0';
}

/* Also if the trace was not stopped. */
void yield_trace_free(struct yield_trace *trace)
{
	if (trace->path[0])
		rmdir(trace->path);
	free(trace->events);
	memset(trace, 0, sizeof(*trace));
}
