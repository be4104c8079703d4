/* bound.c: a time that no schedule of a known program in a given room is below; bound.py compiles it and calls it.
 *
 * The program is one step that repeats: operators in a fixed order, each on the device alone, with all that it uses and
 * makes there meanwhile. Storages are whole, and nothing is computed twice. Copies have a link in each direction.
 *
 * What it rests on. Take a segment, from the start of operator i to the start of operator j. During i the room beside
 * its working set has at most room - need(i) bytes of others. Bytes that existed before i, and are read by i+1..j, are
 * there when their reader starts: what is beyond that room is copied in after i has ended. Likewise what is written in
 * i..j-1 and needed after j has to be copied out before j starts, but for room - need(j) bytes. So the segment takes
 * no less than its operators, and no less than i and either of these copies. A copy of s bytes also takes the latency:
 * of bytes that count at most `tau` a storage there are at least (bytes - room) / tau copies, for any tau. Disjoint
 * segments add up, so the best partition of the step into segments is a bound of the step, from wherever it is cut.
 *
 * Operators are taken together in runs of equal number where there are more than `cuts`: fewer segments, a smaller
 * bound. What a temporary holds after its last use is taken to be needed by nobody, though a program may hold it on.
 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { TAUS = 7 };
static const double taus[TAUS] = {DBL_MAX, 0.25e6, 1e6, 4e6, 16e6, 64e6, 256e6}; /* the first: bytes as they are */

struct rows { /* of operator t: item[at[t]] to item[at[t + 1] - 1] */
  const int *at, *item;
};

struct program {
  int operators, storages;
  const double *cost, *size;
  const unsigned char *lasting; /* alive at both ends of the step */
  struct rows uses, reads, writes; /* reads: of what was made before; made is written */
};

struct machine {
  double room, in, out, latency; /* bytes, bytes/ns, ns */
};

struct sums {
  double bytes[TAUS]; /* by how much a storage counts at most */
};

struct walk { /* of the segments that begin at one operator */
  const struct program *p;
  const struct machine *m;
  const double *need; /* bytes, of each operator */
  const int *last;    /* use, of each storage */
  int *met, *written, *pinned; /* by storage, with the number of whom it was marked by */
  int number, marks;
  struct sums in, out;
};

static void count(struct sums *s, double size, double sign) {
  for (int q = 0; q < TAUS; q++) {
    s->bytes[q] += sign * (size < taus[q] ? size : taus[q]);
  }
}

/* ns that it takes to copy what is beyond the room. */
static double copying(const struct sums *s, double room, double speed, double latency) {
  double waits = 0;
  for (int q = 1; q < TAUS; q++) {
    double least = latency / taus[q] * (s->bytes[q] - room);
    waits = least > waits ? least : waits;
  }
  return (s->bytes[0] - room) / speed + waits;
}

static void meet(struct walk *w, int t) {
  const struct program *p = w->p;
  for (int k = p->reads.at[t]; k < p->reads.at[t + 1]; k++) {
    if (w->met[p->reads.item[k]] != w->number) {
      count(&w->in, p->size[p->reads.item[k]], 1);
    }
  }
  for (int k = p->uses.at[t]; k < p->uses.at[t + 1]; k++) {
    w->met[p->uses.item[k]] = w->number;
  }
}

/* It has run: what it wrote may have to leave, what nobody uses again need not. */
static void write_back(struct walk *w, int t) {
  const struct program *p = w->p;
  for (int k = p->writes.at[t]; k < p->writes.at[t + 1]; k++) {
    int s = p->writes.item[k];
    if (w->written[s] != w->number) {
      w->written[s] = w->number;
      count(&w->out, p->size[s], 1);
    }
  }
  for (int k = p->uses.at[t]; k < p->uses.at[t + 1]; k++) {
    int s = p->uses.item[k];
    if (!p->lasting[s] && w->written[s] == w->number && w->last[s] == t) {
      w->written[s] = -1;
      count(&w->out, p->size[s], -1);
    }
  }
}

/* ns of a segment from `first` to the start of `next`, whose operators alone take `work`. */
static double segment(struct walk *w, int first, int next, double work) {
  const struct program *p = w->p;
  const struct machine *m = w->m;
  struct sums out = w->out;
  w->marks++;
  for (int k = p->uses.at[next]; k < p->uses.at[next + 1]; k++) {
    int s = p->uses.item[k];
    if (w->pinned[s] != w->marks && w->written[s] == w->number) {
      w->pinned[s] = w->marks;
      count(&out, p->size[s], -1);
    }
  }
  double in = copying(&w->in, m->room - w->need[first], m->in, m->latency);
  double back = copying(&out, m->room - w->need[next], m->out, m->latency);
  double copied = in > back ? in : back;
  double both = copied > 0 ? p->cost[first] + copied : 0;
  return both > work ? both : work;
}

static int cut(const struct program *p, int cuts, int i) { return (int)((long long)i * p->operators / cuts); }

/* found[length - 1]: ns of the segment of so many runs that begins with this one. */
static void walk_from(struct walk *w, int cuts, int run, double *found) {
  const struct program *p = w->p;
  int first = cut(p, cuts, run);
  double work = 0;
  w->number = run;
  memset(&w->in, 0, sizeof w->in);
  memset(&w->out, 0, sizeof w->out);
  for (int k = p->uses.at[first]; k < p->uses.at[first + 1]; k++) {
    w->met[p->uses.item[k]] = run;
  }
  for (int length = 1; length <= cuts; length++) {
    int at = (run + length - 1) % cuts, next = cut(p, cuts, (run + length) % cuts);
    for (int t = cut(p, cuts, at); t < cut(p, cuts, at + 1); t++) {
      work += p->cost[t];
      if (t != cut(p, cuts, at)) {
        meet(w, t); /* the first of a run was met as the end of the segment before */
      }
      write_back(w, t);
    }
    if (length < cuts) {
      meet(w, next);
    }
    found[length - 1] = segment(w, first, next, work);
  }
}

/* The best partition, for some of the places at which the step can be cut. */
static double partition(const double *found, int cuts, double *best) {
  double most = 0;
  for (int from = 0; from < cuts; from += cuts < 24 ? 1 : cuts / 24) {
    best[0] = 0;
    for (int end = 1; end <= cuts; end++) {
      best[end] = 0;
      for (int s = 0; s < end; s++) {
        double all = best[s] + found[(size_t)((from + s) % cuts) * (size_t)cuts + (size_t)(end - s - 1)];
        best[end] = all > best[end] ? all : best[end];
      }
    }
    most = best[cuts] > most ? best[cuts] : most;
  }
  return most;
}

static double walk_all(struct walk *w, int cuts, double *need, int *last) {
  const struct program *p = w->p;
  for (int t = 0; t < p->operators; t++) {
    for (int k = p->uses.at[t]; k < p->uses.at[t + 1]; k++) {
      need[t] += p->size[p->uses.item[k]];
      last[p->uses.item[k]] = t;
    }
  }
  double *found = calloc((size_t)cuts * (size_t)cuts, sizeof *found), *best = calloc((size_t)cuts + 1, sizeof *best), ns = -1;
  if (found && best) {
    for (int run = 0; run < cuts; run++) {
      walk_from(w, cuts, run, found + (size_t)run * (size_t)cuts);
    }
    ns = partition(found, cuts, best);
  }
  free(found);
  free(best);
  return ns;
}

/* ns of a step, at least; -1: there is no memory. */
double bound(const struct program *p, const struct machine *m, int cuts) {
  size_t n = (size_t)p->storages + 1;
  int *marks = malloc(4 * n * sizeof *marks);
  double *need = calloc((size_t)p->operators + 1, sizeof *need), ns = -1;
  if (marks && need) {
    memset(marks, -1, 4 * n * sizeof *marks);
    struct walk w = {.p = p, .m = m, .need = need, .last = marks, .met = marks + n, .written = marks + 2 * n, .pinned = marks + 3 * n};
    ns = walk_all(&w, cuts < p->operators ? cuts : p->operators, need, marks);
  }
  free(marks);
  free(need);
  return ns;
}
