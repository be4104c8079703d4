/* op.c: operations and graphs of them: what they hold, and what copies and fills do to bytes. */
#include "virtual_gpu/runtime/internal.h"

struct op *new_op(enum kind kind, struct stream *s) {
  struct op *op = calloc(1, sizeof *op);
  if (!op) return NULL;
  op->kind = kind;
  op->stream = s;
  op->device = s->device;
  op->references = 1;
  op->at.actor = -1;
  return op;
}

void drop_op(struct op *op) {
  if (!op || --op->references) return;
  for (size_t i = 0; i < op->wait_count; i++) drop_op(op->waits[i]);
  if (op->drop) op->drop(op->data);
  if (op->graph) drop_graph(op->graph);
  free(op->waits);
  free(op->accesses);
  free(op->staged);
  clock_free(&op->clock);
  free(op);
}

void op_waits(struct op *op, struct op *before) {
  if (!before) return;
  if (before->state == DONE) {
    if (op->ends_ns < before->ends_ns) op->ends_ns = before->ends_ns;
    return;
  }
  struct op **larger = realloc(op->waits, (op->wait_count + 1) * sizeof *larger);
  if (!larger) abort(); /* to go on would be to forget an order */
  op->waits = larger;
  larger[op->wait_count++] = before;
  before->references++;
}

/* ---- copies and fills */

/* The device may have been freed below an operation that nothing ordered before that. */
bool still_there(const struct part *p, bool fill) {
  return block_number(p->to) == p->to_block && (fill || block_number(p->from) == p->from_block);
}

void do_part(const struct part *p, bool fill) {
  for (size_t r = 0; r < p->rows; r++) {
    char *to = (char *)p->to + r * p->to_pitch;
    if (!fill) memmove(to, (const char *)p->from + r * p->from_pitch, p->bytes);
    else if (p->width == 1) memset(to, p->value, p->bytes);
    else
      for (size_t i = 0; i < p->bytes; i += (size_t)p->width) memcpy(to + i, &p->value, (size_t)p->width);
  }
}

/* ---- graphs */

cudaError_t record_op(struct op *op, const struct access *accesses, size_t count) {
  struct capture *c = op->stream->capture;
  if (!c || c->invalid) return drop_op(op), cudaErrorStreamCaptureInvalidated;
  if (op->kind == RECORD || op->kind == WAIT)
    return drop_op(op), cudaSuccess; /* orders that the graph's own order holds */
  if (count) {
    op->accesses = malloc(count * sizeof *accesses);
    if (!op->accesses) return drop_op(op), cudaErrorMemoryAllocation;
    memcpy(op->accesses, accesses, count * sizeof *accesses);
    op->access_count = count;
    op->at.site = here(NULL);
  }
  struct graph *g = c->graph;
  if (g->last) g->last->next = op;
  else g->first = op;
  g->last = op;
  g->count++;
  return cudaSuccess;
}

void drop_graph(struct graph *g) {
  if (!g || --g->references) return;
  while (g->first) {
    struct op *op = g->first;
    g->first = op->next;
    drop_op(op);
  }
  free(g);
}

/* The memory of recorded operands is the program's to keep. */
void run_graph(struct graph *g) {
  for (struct op *op = g->first; op; op = op->next) {
    if (op->kind == COPY || op->kind == FILL) {
      if (still_there(&op->part, op->kind == FILL)) do_part(&op->part, op->kind == FILL);
    } else if (op->run) {
      unlock();
      op->run(op->data);
      lock();
    }
  }
}
