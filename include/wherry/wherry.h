/** @file wherry/wherry.h  All of Wherry's headers, except wherry/mpi.h. */
#ifndef WHERRY_WHERRY_H
#define WHERRY_WHERRY_H

#include <wherry/base.h>
#include <wherry/checkpoint.h>
#include <wherry/expert.h>
#include <wherry/file.h>
#include <wherry/group.h>
#include <wherry/group_ops.h>
#include <wherry/tensor.h>
#include <wherry/value.h>

#endif
