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

static const struct {
	const char *system;
	const char *name;
	const char *next_pid;	/* what precedes it in the event's text */
} trace_events[NR_YIELD_TRACE_TYPES] = {
	[YIELD_TRACE_YIELD]	= { "kvm", "kvm_directed_yield" },
	[YIELD_TRACE_SWITCH]	= { "sched", "sched_switch", " next_pid=" },
	[YIELD_TRACE_WAKEUP]	= { "sched", "sched_wakeup", " pid=" },
	[YIELD_TRACE_EXIT]	= { "kvm", "kvm_exit" },
};

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
 * Record yields of all tasks, and the types of events in @also, a mask with
 * BIT(YIELD_TRACE_SWITCH) and so on, in a trace instance of this test's own.
 */
void yield_trace_start(struct yield_trace *trace, unsigned int also)
{
	char file[64];
	int i;

	memset(trace, 0, sizeof(*trace));
	snprintf(trace->path, sizeof(trace->path), TRACEFS "/instances/kvm-%d",
		 getpid());
	TEST_ASSERT(!mkdir(trace->path, 0700), "Failed to create %s",
		    trace->path);

	trace_write(trace, "buffer_size_kb", BUFFER_SIZE);
	/* The order of events on different CPUs is that of this clock. */
	trace_write(trace, "trace_clock", "counter");
	for (i = 0; i < NR_YIELD_TRACE_TYPES; i++) {
		if (i != YIELD_TRACE_YIELD && !(also & BIT(i)))
			continue;
		snprintf(file, sizeof(file), "events/%s/%s/enable",
			 trace_events[i].system, trace_events[i].name);
		trace_write(trace, file, "1");
	}
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

static void parse_yield(const char *line, const char *p,
			struct yield_trace_event *e)
{
	int n = sscanf(p, " vcpu_id %d target_id %d target_pid %d",
		       &e->vcpu_id, &e->target_id, &e->target_pid);

	p = strstr(p, " reason ");
	if (p)
		n += sscanf(p, " reason %15s result %d visited %u",
			    e->reason, &e->result, &e->visited);
	TEST_ASSERT(n == 6, "Unknown format of event: %s", line);
}

static bool parse_event(const char *line, struct yield_trace_event *e)
{
	const char *p, *next_pid;
	char name[64];
	int i;

	memset(e, 0, sizeof(*e));
	for (i = 0; i < NR_YIELD_TRACE_TYPES; i++) {
		snprintf(name, sizeof(name), ": %s:", trace_events[i].name);
		p = strstr(line, name);
		if (!p)
			continue;

		p += strlen(name);
		e->type = i;
		e->pid = parse_pid(line);
		if (i == YIELD_TRACE_YIELD)
			parse_yield(line, p, e);

		next_pid = trace_events[i].next_pid;
		if (next_pid) {
			p = strstr(p, next_pid);
			TEST_ASSERT(p, "Unknown format of event: %s", line);
			e->next_pid = atoi(p + strlen(next_pid));
		}
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
