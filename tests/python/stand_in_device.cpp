// A device for torch (PrivateUse1) that needs no hardware, for tests of devices without a lane of their own.
//
// Its memory is host memory in which every byte is stored inverted, so that code that reads or writes it without torch's copies gets wrong values. Copies to and from the host invert, and are counted. There are no other operators.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
long crossings = 0, largest = 0;

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t nbytes) override {
        void *data = nbytes ? std::malloc(nbytes) : nullptr;
        return {data, data, &std::free, c10::Device(KIND, 0)};
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return &std::free;
    }
    void copy_data(void *to, const void *from, size_t nbytes) const override {
        std::memcpy(to, from, nbytes);
    }
};
Allocator allocator;
REGISTER_ALLOCATOR(KIND, &allocator);
C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<KIND>);

struct Hooks final : at::PrivateUse1HooksInterface {
    bool hasPrimaryContext(c10::DeviceIndex) const override {
        return true;
    }
    bool isBuilt() const override {
        return true;
    }
    bool isAvailable() const override {
        return true;
    }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t nbytes) const override {
        c10::DataPtr data = allocator.allocate(nbytes);
        std::memcpy(data.get(), storage.data(), std::min(nbytes, storage.nbytes()));
        storage.set_data_ptr_noswap(std::move(data));
        storage.set_nbytes(nbytes);
    }
};

at::Tensor empty(at::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
    return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator,
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat),
                                     format);
}

at::Tensor empty_strided(at::SymIntArrayRef size, at::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
    return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             dtype.value_or(at::kFloat));
}

void invert(const at::Tensor &from, const at::Tensor &to) {
    auto *in = static_cast<const unsigned char *>(from.const_data_ptr());
    auto *out = static_cast<unsigned char *>(to.mutable_data_ptr());
    for (size_t i = 0; i < from.nbytes(); i++) {
        out[i] = static_cast<unsigned char>(~in[i]);
    }
}

// A view of the device's memory as the CPU sees it, bytes inverted and all.
at::Tensor raw(const at::Tensor &tensor) {
    return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(),
                         tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor &self, const at::Tensor &to, bool) {
    if (self.numel() == 0) {
        return to;
    }
    if (self.device() == to.device()) {
        TORCH_CHECK(self.scalar_type() == to.scalar_type(), "one dtype at a time");
        raw(to).copy_(raw(self));
        return to;
    }
    crossings++;
    largest = std::max(largest, static_cast<long>(to.nbytes()));
    if (self.is_cpu()) {
        at::Tensor from = self.to(to.scalar_type()).expand(to.sizes()).contiguous(), inverted = at::empty_like(from);
        invert(from, inverted);
        raw(to).copy_(inverted);
    } else {
        at::Tensor from = raw(self).contiguous(), plain = at::empty_like(from);
        invert(from, plain);
        to.copy_(plain);
    }
    return to;
}

at::Tensor &set_storage(at::Tensor &self, c10::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
    return at::cpu::set_(self, storage, offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size),
                         C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor &set_whole_storage(at::Tensor &self, c10::Storage storage) {
    auto count = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
    return at::cpu::set_(self, storage, 0, {count}, {1});
}

at::Tensor as_strided(const at::Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
    std::optional<int64_t> begin;
    if (offset) {
        begin = offset->expect_int();
    }
    return at::cpu::as_strided(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), begin);
}

at::Tensor view(const at::Tensor &self, c10::SymIntArrayRef size) {
    return at::cpu::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("_copy_from", &copy_from);
    m.impl("set_.source_Storage_storage_offset", &set_storage);
    m.impl("set_.source_Storage", &set_whole_storage);
    m.impl("as_strided", &as_strided);
    m.impl("view", &view);
}

} // namespace

extern "C" void stand_in_start() {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
}
extern "C" long stand_in_crossings() {
    return crossings;
}
extern "C" long stand_in_largest() {
    return largest;
}
extern "C" void stand_in_reset() {
    crossings = largest = 0;
}
