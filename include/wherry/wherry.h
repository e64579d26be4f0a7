/** @file wherry/wherry.h  All of Wherry's headers. */
#ifndef WHERRY_WHERRY_H
#define WHERRY_WHERRY_H

#include <wherry/allocator.h>
#include <wherry/cancel.h>
#include <wherry/checkpoint.h>
#include <wherry/device.h>
#include <wherry/digest.h>
#include <wherry/dtensor.h>
#include <wherry/dtype.h>
#include <wherry/error.h>
#include <wherry/file.h>
#include <wherry/group.h>
#include <wherry/group_ops.h>
#include <wherry/log.h>
#include <wherry/manifest.h>
#include <wherry/path.h>
#include <wherry/plan.h>
#include <wherry/prepare.h>
#include <wherry/ready.h>
#include <wherry/sharded.h>
#include <wherry/state.h>
#include <wherry/stats.h>
#include <wherry/status.h>
#include <wherry/storage.h>
#include <wherry/tensor.h>
#include <wherry/trace.h>
#include <wherry/value.h>
#include <wherry/version.h>

#endif
