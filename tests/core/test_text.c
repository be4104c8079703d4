/* Codes, reasons and events have names and texts, and a stranger has one too. */
#include "expect.h"

static void every_code_has_a_name_and_a_text(void) {
  EXPECT_TEXT(mgd_text_error_name(MGD_OK), "OK");
  EXPECT_TEXT(mgd_text_error_name(MGD_E_NOMEM), "NOMEM");
  EXPECT_TEXT(mgd_text_error_name(MGD_E_NO_ROOM), "NO_ROOM");
  EXPECT_TEXT(mgd_text_error_name(MGD_E_BROKEN), "BROKEN");
  EXPECT_TEXT(mgd_text_error(MGD_OK), "no error");
  EXPECT_TEXT(mgd_text_error(MGD_E_PIN_CONFLICT), "operands are pinned to different devices");
  for (int code = MGD_E_NOMEM; code >= MGD_E_BROKEN; code--) {
    EXPECT(strcmp(mgd_text_error_name(code), "UNKNOWN") != 0);
    EXPECT(strlen(mgd_text_error(code)) > 10);
  }
}

static void codes_are_negative_in_the_order_of_the_list(void) {
  EXPECT_INT(MGD_OK, 0);
  EXPECT_INT(MGD_E_NOMEM, -1);
  EXPECT_INT(MGD_E_INVALID, -2);
}

static void numbers_that_stand_for_nothing_are_unknown(void) {
  const int strange[] = {1, MGD_E_BROKEN - 1, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < 4; i++) {
    EXPECT_TEXT(mgd_text_error_name(strange[i]), "UNKNOWN");
    EXPECT_TEXT(mgd_text_error(strange[i]), "an unknown error code: this is a bug");
  }
  EXPECT_TEXT(mgd_text_reason(-1), "UNKNOWN");
  EXPECT_TEXT(mgd_text_reason(MGD_WHY_KINDS), "UNKNOWN");
  EXPECT_TEXT(mgd_text_event(-1), "UNKNOWN");
  EXPECT_TEXT(mgd_text_event(MGD_EV_KINDS), "UNKNOWN");
}

static void reasons_and_events_read_well(void) {
  EXPECT_TEXT(mgd_text_reason(MGD_WHY_NONE), "");
  EXPECT_TEXT(mgd_text_reason(MGD_WHY_DISPERSED), "it has the least in use for its speed");
  EXPECT_TEXT(mgd_text_event(MGD_EV_MOVE), "move");
  EXPECT_TEXT(mgd_text_event(MGD_EV_RELEASE), "release");
}

int main(void) {
  every_code_has_a_name_and_a_text();
  codes_are_negative_in_the_order_of_the_list();
  numbers_that_stand_for_nothing_are_unknown();
  reasons_and_events_read_well();
  return 0;
}
