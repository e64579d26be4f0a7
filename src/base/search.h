/** @file search.h  Binary search. */
#ifndef WH_BASE_SEARCH_H
#define WH_BASE_SEARCH_H

#include <stddef.h>

/**
 * The number of elements of an array that pass a test. All elements that pass must come before
 * those that do not.
 * @param count   the number of elements.
 * @param i       a name for the index of an element.
 * @param passes  the test of element `i`: an expression.
 */
#define WH_PARTITION_POINT(count, i, passes)                                                                           \
    ({                                                                                                                 \
        size_t low_ = 0;                                                                                               \
        for (size_t high_ = (count); low_ < high_;) {                                                                  \
            size_t i = low_ + (high_ - low_) / 2;                                                                      \
            if (passes) {                                                                                              \
                low_ = i + 1;                                                                                          \
            } else {                                                                                                   \
                high_ = i;                                                                                             \
            }                                                                                                          \
        }                                                                                                              \
        low_;                                                                                                          \
    })

#endif
