#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *wh_double_format(double number, char text[WH_DOUBLE_TEXT_MAX]) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = uselocale(plain);
    int digits = 15;
    int size;
    do {
        size = snprintf(text, WH_DOUBLE_TEXT_MAX, "%.*g", digits, number);
    } while (strtod(text, NULL) != number && ++digits <= 17);
    uselocale(before);
    freelocale(plain);
    if (!strpbrk(text, ".e")) {
        snprintf(text + size, WH_DOUBLE_TEXT_MAX - (size_t)size, ".0");
    }
    return text;
}

bool wh_double_parse(const char *text, double *number_p) {
    if (!strpbrk(text, "0123456789") || strspn(text, "0123456789.e+-") != strlen(text)) {
        return false;
    }
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    char *end;
    double number = strtod_l(text, &end, plain);
    freelocale(plain);
    if (*end || !isfinite(number)) {
        return false;
    }
    *number_p = number;
    return true;
}
