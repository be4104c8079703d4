/* text.c: names and texts of codes, reasons and events.
 *
 * All tables are made from the lists in types.h. No function here fails: an unknown number has the name "UNKNOWN", so
 * that a message can always be written.
 */
#include "core/core.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const error_names[] = {"OK",
#define X(name, text) #name,
                                          MGD_ERRORS(X)
#undef X
};

static const char *const error_texts[] = {"no error",
#define X(name, text) text,
                                          MGD_ERRORS(X)
#undef X
};

static const char *const reason_texts[] = {
#define X(name, text) text,
    MGD_REASONS(X)
#undef X
};

static const char *const event_names[] = {
#define X(name, text) text,
    MGD_EVENTS(X)
#undef X
};

/* Codes are 0 and below, so that -code indexes a table. */
static const char *by_code(const char *const *table, size_t count, int code, const char *unknown) {
  return code <= 0 && code > -(int)count ? table[-code] : unknown;
}

static const char *by_number(const char *const *table, size_t count, int number) {
  return number >= 0 && number < (int)count ? table[number] : "UNKNOWN";
}

const char *mgd_text_error_name(int code) { return by_code(error_names, COUNT(error_names), code, "UNKNOWN"); }

const char *mgd_text_error(int code) {
  return by_code(error_texts, COUNT(error_texts), code, "an unknown error code: this is a bug");
}

const char *mgd_text_reason(int reason) { return by_number(reason_texts, COUNT(reason_texts), reason); }

const char *mgd_text_event(int kind) { return by_number(event_names, COUNT(event_names), kind); }
