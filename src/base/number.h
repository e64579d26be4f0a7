/** @file number.h  Doubles as text, whatever locale the program has set. */
#ifndef WH_BASE_NUMBER_H
#define WH_BASE_NUMBER_H

#include <stdbool.h>

/** Bytes that wh_double_format needs, the final zero included. */
#define WH_DOUBLE_TEXT_MAX 40

/** Writes a finite number with as many digits as it takes to read it back, and a point or an exponent. @return text. */
char *wh_double_format(double number, char text[WH_DOUBLE_TEXT_MAX]);

/** Reads all of a zero-terminated text as a finite decimal number. @return false where it is none. */
bool wh_double_parse(const char *text, double *number_p);

#endif
