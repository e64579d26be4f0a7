#include "base/point.h"

void (*wh_point_hook)(const char *name) = NULL;
