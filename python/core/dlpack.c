/*
 * DLPack's table of C functions, which a type of tensors carries as the capsule __dlpack_c_exchange_api__: one call says what would
 * take a handful of methods. https://dmlc.github.io/dlpack/latest/ is its specification; what is used of it is laid out here.
 */
#include "core.h"

enum { DL_MAJOR = 1 };

/** What all versions of the table begin with. */
typedef struct dl_header {
    uint32_t major;
    uint32_t minor;
    const struct dl_header *previous; /**< A table of an older version, or NULL. */
} dl_header;

/** The table of version 1. The functions that are not used here are named only. */
typedef struct dl_table {
    dl_header header;
    void (*allocate)(void);
    void (*export_owned)(void);
    void (*import_owned)(void);
    wpy_dl_read_fn describe; /**< May be NULL. */
    void (*current_stream)(void);
} dl_table;

wpy_dl_read_fn wpy_dl_find(PyTypeObject *type) {
    PyObject *capsule = PyObject_GetAttr((PyObject *)type, wpy_name.__dlpack_c_exchange_api__);
    const dl_header *header = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule); /* the table outlives it: it is there as long as the process */
    PyErr_Clear();
    while (header && header->major != DL_MAJOR) {
        header = header->previous;
    }
    return header ? ((const dl_table *)header)->describe : NULL;
}

/* ---- element types ---- */

/** DLPack's numbers for kinds of elements. */
enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_COMPLEX = 5,
    DL_BOOL = 6,
    DL_F8_E4M3FN = 10,
    DL_F8_E4M3FNUZ = 11,
    DL_F8_E5M2 = 12,
    DL_F8_E5M2FNUZ = 13,
    DL_F8_E8M0FNU = 14
};

static const struct {
    uint8_t code;
    uint8_t bits;
    wherry_dtype dtype;
} dl_types[] = {
    {DL_FLOAT, 32, WHERRY_F32},
    {DL_BFLOAT, 16, WHERRY_BF16},
    {DL_FLOAT, 16, WHERRY_F16},
    {DL_INT, 64, WHERRY_I64},
    {DL_FLOAT, 64, WHERRY_F64},
    {DL_BOOL, 8, WHERRY_BOOL},
    {DL_INT, 8, WHERRY_I8},
    {DL_INT, 16, WHERRY_I16},
    {DL_INT, 32, WHERRY_I32},
    {DL_UINT, 8, WHERRY_U8},
    {DL_UINT, 16, WHERRY_U16},
    {DL_UINT, 32, WHERRY_U32},
    {DL_UINT, 64, WHERRY_U64},
    {DL_COMPLEX, 32, WHERRY_C32},
    {DL_COMPLEX, 64, WHERRY_C64},
    {DL_COMPLEX, 128, WHERRY_C128},
    {DL_F8_E4M3FN, 8, WHERRY_F8_E4M3FN},
    {DL_F8_E4M3FNUZ, 8, WHERRY_F8_E4M3FNUZ},
    {DL_F8_E5M2, 8, WHERRY_F8_E5M2},
    {DL_F8_E5M2FNUZ, 8, WHERRY_F8_E5M2FNUZ},
    {DL_F8_E8M0FNU, 8, WHERRY_F8_E8M0FNU},
};

bool wpy_dl_dtype(const wpy_dl_tensor *tensor, wherry_dtype *dtype_p) {
    for (size_t i = 0; tensor->lanes == 1 && i < sizeof(dl_types) / sizeof(*dl_types); i++) {
        if (dl_types[i].code == tensor->code && dl_types[i].bits == tensor->bits) {
            *dtype_p = dl_types[i].dtype;
            return true;
        }
    }
    return false;
}

PyObject *wpy_dl_dtypes(void) {
    PyObject *all = PyDict_New();
    for (size_t i = 0; all && i < sizeof(dl_types) / sizeof(*dl_types); i++) {
        PyObject *key = Py_BuildValue("(ii)", (int)dl_types[i].code, (int)dl_types[i].bits);
        PyObject *code = PyLong_FromLong(dl_types[i].dtype);
        if (!key || !code || PyDict_SetItem(all, key, code) != 0) {
            Py_CLEAR(all);
        }
        Py_XDECREF(code);
        Py_XDECREF(key);
    }
    return all;
}
