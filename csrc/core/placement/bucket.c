/* bucket.c: groups tensors into buckets. A bucket crosses to another device as one copy, since each copy takes a
 * latency beside its bytes. No machine state is needed.
 */
#include "core/bucket.h"

#include "core/types.h"

/* The last bucket of a home and type. */
struct last {
  int64_t bytes;   /* -1: there is no bucket */
  uint32_t number;
  int64_t before;  /* the number of the bucket before it, or -1 */
};

static bool is_valid(const struct mgd_bucket_item *item) {
  return item->home >= 0 && item->home < MGD_MAX_DEVICES && item->type >= 0 && item->type < MGD_BUCKET_TYPES &&
      item->bytes >= 0;
}

/* Whether the tensor begins another bucket. */
static bool begins(const struct last *last, const struct mgd_bucket_item *item, int64_t least) {
  if (last->bytes < 0 || item->bytes >= MGD_BUCKET_LARGE || last->bytes >= MGD_BUCKET_LARGE) { return true; }
  return last->bytes >= least && (last->bytes >= MGD_BUCKET_BYTES || item->bytes > MGD_BUCKET_BYTES - last->bytes);
}

int mgd_bucket_group(const struct mgd_bucket_item *items, size_t n, int64_t least, uint32_t *bucket_of) {
  struct last lasts[MGD_MAX_DEVICES][MGD_BUCKET_TYPES];
  for (int home = 0; home < MGD_MAX_DEVICES; home++) {
    for (int type = 0; type < MGD_BUCKET_TYPES; type++) { lasts[home][type] = (struct last){-1, 0, -1}; }
  }
  for (size_t i = 0; i < n; i++) {
    if (n > UINT32_MAX || !is_valid(&items[i])) { return MGD_E_INVALID; }
  }
  for (size_t i = 0; i < n; i++) {
    struct last *last = &lasts[items[i].home][items[i].type];
    if (begins(last, &items[i], least)) {
      *last = (struct last){0, (uint32_t)i, last->bytes < 0 ? -1 : (int64_t)last->number};
    }
    last->bytes += items[i].bytes; /* no overflow: unless the bucket is new, both are below MGD_BUCKET_LARGE */
    bucket_of[i] = last->number;
  }
  for (size_t i = 0; i < n; i++) {
    const struct last *last = &lasts[items[i].home][items[i].type];
    if (last->bytes < least && last->before >= 0 && bucket_of[i] == last->number) {
      bucket_of[i] = (uint32_t)last->before;
    }
  }
  return MGD_OK;
}

bool mgd_bucket_is_relayed(int64_t bytes, int64_t total, size_t devices) {
  return devices > 2 && bytes >= MGD_BUCKET_LARGE && bytes > total / (int64_t)devices;
}
