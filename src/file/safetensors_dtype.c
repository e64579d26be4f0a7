#include <string.h>

#include "file/safetensors.h"

static const wh_safetensors_dtype rows[] = {
    {"BOOL", WHERRY_BOOL, 1},
    {"U8", WHERRY_U8, 1},
    {"I8", WHERRY_I8, 1},
    {"U16", WHERRY_U16, 1},
    {"I16", WHERRY_I16, 1},
    {"U32", WHERRY_U32, 1},
    {"I32", WHERRY_I32, 1},
    {"U64", WHERRY_U64, 1},
    {"I64", WHERRY_I64, 1},
    {"F16", WHERRY_F16, 1},
    {"BF16", WHERRY_BF16, 1},
    {"F32", WHERRY_F32, 1},
    {"F64", WHERRY_F64, 1},
    {"C64", WHERRY_C64, 1},
    {"F8_E4M3", WHERRY_F8_E4M3FN, 1},
    {"F8_E5M2", WHERRY_F8_E5M2, 1},
    {"F8_E8M0", WHERRY_F8_E8M0FNU, 1},
    {"F8_E4M3FNUZ", WHERRY_F8_E4M3FNUZ, 1},
    {"F8_E5M2FNUZ", WHERRY_F8_E5M2FNUZ, 1},
    {"F4", WHERRY_F4_E2M1FN_X2, 2},
};

enum { ROWS = sizeof(rows) / sizeof(*rows) };

const wh_safetensors_dtype *wh_safetensors_dtype_named(const char *name) {
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return rows + i;
        }
    }
    return NULL;
}

const wh_safetensors_dtype *wh_safetensors_dtype_of(wherry_dtype dtype) {
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].dtype == dtype) {
            return rows + i;
        }
    }
    return NULL;
}
