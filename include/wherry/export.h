/** @file wherry/export.h  What marks a function as part of the library's interface. */
#ifndef WHERRY_EXPORT_H
#define WHERRY_EXPORT_H

#if defined(__GNUC__)
/** Marks a function of the interface. */
#define WHERRY_API __attribute__((visibility("default")))
/** Marks a function that takes a format like printf's as argument number `text`, and what it is about from `first` on. */
#define WHERRY_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define WHERRY_API
#define WHERRY_PRINTF(text, first)
#endif

#endif
