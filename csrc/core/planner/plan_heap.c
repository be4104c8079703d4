/* plan_heap.c: a heap whose items know their place, and a sort that allocates no memory, for the planner.
 *
 * This file does not depend on plans. Items are numbers from 0 to n - 1, so each array is allocated once.
 */
#include "core/planner/internal_plan.h"

int mgd_plan_heap_make(struct mgd_alloc *a, int32_t n, struct mgd_plan_heap *h) {
  const size_t size = (size_t)n + 1;
  h->count = 0;
  h->item = mgd_alloc_new(a, size, sizeof *h->item);
  h->place = mgd_alloc_new(a, size, sizeof *h->place);
  h->key = mgd_alloc_new(a, size, sizeof *h->key);
  if (!h->item || !h->place || !h->key) {
    return MGD_E_NOMEM;
  }
  for (int32_t i = 0; i < n; i++) {
    h->place[i] = -1;
  }
  return MGD_OK;
}

void mgd_plan_heap_free(struct mgd_plan_heap *h) {
  mgd_alloc_free(h->item);
  mgd_alloc_free(h->place);
  mgd_alloc_free(h->key);
}

void mgd_plan_heap_clear(struct mgd_plan_heap *h) {
  while (h->count > 0) {
    h->place[h->item[--h->count]] = -1;
  }
}

static void set_item(struct mgd_plan_heap *h, int32_t place, int32_t item) {
  h->item[place] = item;
  h->place[item] = place;
}

/* Moves the item from `place` upwards and then downwards, to where its key belongs. */
static void sift_item(struct mgd_plan_heap *h, int32_t place, int32_t item) {
  const int64_t key = h->key[item];
  while (place > 0 && h->key[h->item[(place - 1) / 2]] > key) {
    set_item(h, place, h->item[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  while (place < h->count / 2) {
    int32_t child = 2 * place + 1;
    if (child + 1 < h->count && h->key[h->item[child + 1]] < h->key[h->item[child]]) {
      child++;
    }
    if (h->key[h->item[child]] >= key) {
      break;
    }
    set_item(h, place, h->item[child]);
    place = child;
  }
  set_item(h, place, item);
}

void mgd_plan_heap_put(struct mgd_plan_heap *h, int32_t item, int64_t key) {
  h->key[item] = key;
  sift_item(h, h->place[item] >= 0 ? h->place[item] : h->count++, item);
}

void mgd_plan_heap_remove(struct mgd_plan_heap *h, int32_t item) {
  const int32_t place = h->place[item];
  if (place < 0) {
    return;
  }
  h->place[item] = -1;
  const int32_t last = h->item[--h->count];
  if (last != item) {
    sift_item(h, place, last);
  }
}

int32_t mgd_plan_heap_pop(struct mgd_plan_heap *h) {
  const int32_t item = h->item[0];
  mgd_plan_heap_remove(h, item);
  return item;
}

/* ---- sort: Williams' heapsort, CACM 7(6), 1964 */

static bool is_after(const struct mgd_plan_entry *a, const struct mgd_plan_entry *b) {
  return a->key != b->key ? a->key > b->key : a->value > b->value;
}

static void sink_entry(struct mgd_plan_entry *entry, int32_t n, int32_t place) {
  const struct mgd_plan_entry moved = entry[place];
  while (place < n / 2) {
    int32_t child = 2 * place + 1;
    if (child + 1 < n && is_after(&entry[child + 1], &entry[child])) {
      child++;
    }
    if (!is_after(&entry[child], &moved)) {
      break;
    }
    entry[place] = entry[child];
    place = child;
  }
  entry[place] = moved;
}

void mgd_plan_heap_sort(struct mgd_plan_entry *entry, int32_t n) {
  for (int32_t i = n / 2 - 1; i >= 0; i--) {
    sink_entry(entry, n, i);
  }
  for (int32_t last = n - 1; last > 0; last--) {
    const struct mgd_plan_entry top = entry[0];
    entry[0] = entry[last];
    entry[last] = top;
    sink_entry(entry, last, 0);
  }
}
