#include "lane/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fail.h"

wherry_status wh_boot_read(void *boot, wherry_error *error) {
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, boot, WH_BOOT_BYTES);
    int errnum = got < 0 ? errno : EIO;
    if (file >= 0) {
        close(file);
    }
    return got == WH_BOOT_BYTES ? WHERRY_OK
                                : wh_fail_errno(error, WHERRY_UNSUPPORTED, errnum,
                                                "cannot tell which host this is: cannot read %s, mount /proc", path);
}
