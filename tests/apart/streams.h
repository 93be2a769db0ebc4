// Streams of the device, and an account of who waits for whom: a kernel that uses memory without having waited for
// those who used it before is refused, whatever the timing.
//
// Kernels run when they are called. What a GPU might do in another order is found by clocks: a stream's clock counts
// the stream's own work, and of every other stream's the work that it has waited for.
//
//   a kernel      knows what its stream knows, and must know what was written where it reads, and what was written and
//                 read where it writes
//   an event      keeps its stream's clock; who waits for the event knows what that knew
//   the program   waits for streams itself (synchronize, values that it reads): everybody knows what it has seen done
//   memory        belongs to the stream that it was made on. Given back, it may be that stream's next result, so that
//                 the stream must know what others did with it, unless it was recorded on them (record_stream).
//
// What was given back too early is told by the next kernel or synchronisation, as a GPU tells errors late.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ArrayRef.h>

#include <functional>
#include <string>

namespace apart {

/// The device that is current in this thread (apart.cpp).
c10::DeviceIndex current_device();

/// A piece of memory, known by its address on the device, which the current stream of `device` makes.
void made(const void* memory, c10::DeviceIndex device);
void given_back(const void* memory);

struct Used {
  const void* memory;
  bool written;
};
/// A kernel on the stream of `device` that is current in this thread.
void queue(c10::DeviceIndex device, const std::string& kernel, c10::ArrayRef<Used> used);
/// The current streams of two devices wait for each other.
void meet(c10::DeviceIndex one, c10::DeviceIndex other);
/// What the current stream of `device` does once the program waits for what the stream has to do now.
void later(c10::DeviceIndex device, std::function<void()> work);
/// The program waits for the current stream of `device`.
void wait(c10::DeviceIndex device);
/// The part of the device's guard that is about streams and events.
struct StreamsOfGuard : c10::impl::DeviceGuardImplInterface {
  c10::Stream getStream(c10::Device device) const override;
  c10::Stream getDefaultStream(c10::Device device) const override;
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool priority) const override;
  c10::Stream getNewStream(c10::Device device, int priority) const override;
  c10::Stream exchangeStream(c10::Stream stream) const override;
  bool queryStream(const c10::Stream& stream) const override;
  void synchronizeStream(const c10::Stream& stream) const override;
  void synchronizeDevice(c10::DeviceIndex device) const override;
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override;
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override;
  void block(void* event, const c10::Stream& stream) const override;
  bool queryEvent(void* event) const override;
  void synchronizeEvent(void* event) const override;
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override;
};

}  // namespace apart
