/* bucket.h: which tensors cross to other devices as one copy (placement/bucket.c). */
#ifndef MGD_BUCKET_H
#define MGD_BUCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MGD_BUCKET_BYTES ((int64_t)4 << 20)    /* about as many make a bucket */
#define MGD_BUCKET_LARGE ((int64_t)32 << 20)   /* from here on a tensor is a bucket */
#define MGD_BUCKET_TYPES 64

/* A tensor: where it is, the number of its type, and its bytes. */
struct mgd_bucket_item {
  int home, type;
  int64_t bytes;
};
/* Groups tensors of one home and type, in their order, into buckets of about MGD_BUCKET_BYTES. A tensor from
 * MGD_BUCKET_LARGE on begins a bucket, and none follows it there. No bucket is below `least` bytes if its home and
 * type have more than one: the rest joins the bucket before it. bucket_of[i] is the number of a bucket, from 0 to
 * n - 1; not all numbers are used. INVALID: a number is out of range. */
int mgd_bucket_group(const struct mgd_bucket_item *items, size_t n, int64_t least, uint32_t *bucket_of);
/* Whether a bucket goes in parts through the other devices: it is large, and more than an equal share of `total` bytes,
 * so that no choice of homes makes all links equally busy. */
bool mgd_bucket_is_relayed(int64_t bytes, int64_t total, size_t devices);

#ifdef __cplusplus
}
#endif
#endif
