#include "fuse/tiled_loop.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/threads.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

using dynamic::Tensors;

// Half of what a core has for itself, on the CPUs that are common now: what is in a tile is read from there.
constexpr int64_t kBytesOfTile = int64_t{1} << 19;
constexpr int64_t kLeastTile = 4096, kLargestTile = 8192;
// What neighbouring tiles both compute is no larger a part of each.
constexpr int64_t kPartOfTile = 4;
// What is kept of all steps of a tile, for the way back.
constexpr int64_t kMostBytesKept = int64_t{1} << 25;

Span joined(const StepInTiles::Spans& spans, Span all) {
  for (const Span& span : spans.held) all.join(span);
  return all;
}

void set_constants(const StepInTiles& step, std::vector<char*>& held) {
  held.resize(step.held().size());
  for (size_t k = 0; k < held.size(); ++k)
    if (const at::Tensor& t = step.held()[k].constant; t.defined())
      held[k] = static_cast<char*>(const_cast<void*>(t.const_data_ptr()));
}

char* memory_of(const at::Tensor& t) { return static_cast<char*>(const_cast<void*>(t.const_data_ptr())); }

}  // namespace

class TiledLoop::Windows {
 public:
  Windows(int64_t tile, const Span& widest) : tile_(tile), widest_(widest) {}

  /// For such a tensor: the window's number.
  size_t add(const StepInTiles::Held& held) {
    const int64_t widest = tile_ + widest_.before + widest_.after + kGrid;
    windows_.push_back({held.elements, held.bytes, bytes_});
    // Windows of a power of two bytes would take the same places of the cache.
    bytes_ += (std::min(held.elements, widest) * held.bytes / kLine + 3) * kLine;
    return windows_.size() - 1;
  }
  void allocate() { memory_ = c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes_)); }

  /// Where the first element of the tensor would be.
  char* at(size_t window, const Tile& tile) const {
    const auto& [elements, bytes, offset] = windows_[window];
    const int64_t first =
        elements == 1 ? 0 : down_to_grid(std::clamp<int64_t>(tile.begin - widest_.before, 0, elements));
    return element_at(static_cast<char*>(memory_.get()) + offset, -first, bytes);
  }

 private:
  struct Window {
    int64_t elements, bytes, offset;
  };
  const int64_t tile_;
  const Span widest_;
  std::vector<Window> windows_;
  int64_t bytes_ = 0;
  c10::DataPtr memory_;
};

TiledLoop::TiledLoop(StepInTiles step, std::optional<StepInTiles> back, size_t states, int64_t count)
    : step_(std::move(step)), back_(std::move(back)), states_(states), count_(count), elements_(1) {
  const StepInTiles& last = back_ ? *back_ : step_;
  for (size_t k = 0; k < last.results(); ++k) elements_ = std::max(elements_, last.result(k).elements);
}

std::unique_ptr<const TiledLoop> TiledLoop::of(const Graph& step, size_t states, int64_t count, Kernels& kernels) {
  auto in_tiles = StepInTiles::of(step, kernels);
  if (!in_tiles || in_tiles->results() != states) return nullptr;
  std::unique_ptr<TiledLoop> loop(new TiledLoop(*std::move(in_tiles), std::nullopt, states, count));
  return loop->settle_tiles() ? std::move(loop) : nullptr;
}

std::unique_ptr<const TiledLoop> TiledLoop::of(const Graph& step, size_t states, int64_t count, const Graph& back,
                                               Kernels& kernels) {
  auto in_tiles = StepInTiles::of(step, kernels), backwards = StepInTiles::of(back, kernels);
  if (!in_tiles || !backwards || in_tiles->results() != states ||
      backwards->arguments() != in_tiles->arguments() + backwards->results())
    return nullptr;
  std::unique_ptr<TiledLoop> loop(new TiledLoop(*std::move(in_tiles), std::move(backwards), states, count));
  return loop->settle_tiles() ? std::move(loop) : nullptr;
}

// ---- what is needed of each step ----

TiledLoop::Block TiledLoop::forward_block(int64_t steps) const {
  Block block{steps, std::vector<StepInTiles::Spans>(static_cast<size_t>(steps)), {}, {0, 0}};
  std::vector<Span> wanted(states_, Span{0, 0});
  for (auto spans = block.forwards.rbegin(); spans != block.forwards.rend(); ++spans) {
    *spans = step_.needed_for(wanted);
    wanted.assign(spans->held.begin(), spans->held.begin() + static_cast<std::ptrdiff_t>(states_));
    block.widest = joined(*spans, block.widest);
  }
  return block;
}

TiledLoop::Block TiledLoop::backward_block(int64_t steps) const {
  const auto all = static_cast<size_t>(steps);
  Block block{steps, std::vector<StepInTiles::Spans>(all - 1), std::vector<StepInTiles::Spans>(all), {0, 0}};
  std::vector<Span> wanted(back_->results(), Span{0, 0});
  for (size_t s = 0; s < all; ++s) {
    block.backwards[s] = back_->needed_for(wanted);
    const auto given = block.backwards[s].held.begin() + static_cast<std::ptrdiff_t>(step_.arguments());
    wanted.assign(given, given + static_cast<std::ptrdiff_t>(wanted.size()));
    block.widest = joined(block.backwards[s], block.widest);
  }
  std::vector<Span> states(states_);
  for (size_t s = all; s-- > 1;) {
    for (size_t k = 0; k < states_; ++k) states[k].join(block.backwards[s].held[k]);
    block.forwards[s - 1] = step_.needed_for(states);
    std::copy_n(block.forwards[s - 1].held.begin(), states_, states.begin());
    block.widest = joined(block.forwards[s - 1], block.widest);
  }
  return block;
}

bool TiledLoop::settle_tiles() {
  const auto rows =
      static_cast<int64_t>(states_ + step_.arguments() + (back_ ? 2 * back_->results() + back_->arguments() : states_));
  const auto largest = static_cast<uint64_t>(kBytesOfTile / (rows * static_cast<int64_t>(sizeof(double))));
  tile_ = std::clamp(static_cast<int64_t>(std::bit_floor(largest)), kLeastTile, kLargestTile);
  const auto block = [this](int64_t steps) { return back_ ? backward_block(steps) : forward_block(steps); };
  const auto fits = [&](const Block& b) {
    const int64_t more = b.widest.before + b.widest.after, width = std::min(tile_ + more, elements_);
    return (elements_ <= tile_ || more <= tile_ / kPartOfTile) &&
           (!back_ || width * static_cast<int64_t>(states_ * sizeof(double)) * b.steps <= kMostBytesKept);
  };
  // A step by itself says how much a block of steps reads of neighbours.
  if (!fits(block(1))) return false;
  int64_t steps = count_;
  while (!fits(block(steps))) steps = (steps + 1) / 2;
  for (const int64_t n : {steps, count_ % steps}) {
    if (n == 0) continue;
    forwards_.push_back(forward_block(n));
    if (back_) backwards_.push_back(backward_block(n));
  }
  return true;
}

// ---- running ----

Tensors TiledLoop::run(const Tensors& operands) const {
  Tensors given;
  for (const at::Tensor& t : operands) given.push_back(t.contiguous());
  const int64_t whole = count_ / forwards_[0].steps, blocks = whole + (count_ % forwards_[0].steps != 0);
  const auto number = [&](int64_t block) { return static_cast<size_t>(block == whole); };
  std::vector<Tensors> states;
  for (int64_t b = 0; b < blocks; ++b) {
    if (back_ && b + 1 == blocks) break;
    Tensors next = run_forward(forwards_[number(b)], given);
    if (back_) states.emplace_back(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(states_));
    std::move(next.begin(), next.end(), given.begin());
  }
  if (!back_) {
    given.resize(states_);
    return given;
  }
  for (int64_t b = blocks; b-- > 0;) {
    Tensors found = run_backward(backwards_[number(b)], given);
    std::copy(found.begin(), found.end(), given.begin() + static_cast<std::ptrdiff_t>(step_.arguments()));
    if (b == 0) return found;
    std::move(states.back().begin(), states.back().end(), given.begin());
    states.pop_back();
  }
  return {};
}

// Calls `run(first, last, &fault)` for tiles, by their numbers.
template <class F>
void TiledLoop::in_tiles(F run) const {
  const int64_t tiles = (elements_ + tile_ - 1) / tile_;
  std::atomic<uint8_t> any{0};
  const int64_t grain = thresholds().grain_of_kernel / (tile_ * forwards_[0].steps) + 1;
  share_among_threads(tiles, grain, [&](int64_t first, int64_t last) {
    uint8_t fault = 0;
    run(first, last, &fault);
    if (fault) any |= fault;
  });
  raise_faults(any);
}

namespace {

// A tile of what was made, to where all of it goes. One element for all tiles is the first one's.
void give(const StepInTiles::Held& held, const Tile& tile, char* made, char* to) {
  if (held.elements == 1 && tile.begin > 0) return;
  const Tile part = held.part(tile, {0, 0});
  if (part.begin >= part.end) return;
  std::memcpy(to + part.begin * held.bytes, element_at(made, part.begin, held.bytes),
              static_cast<size_t>((part.end - part.begin) * held.bytes));
}

Tensors like(const Tensors& tensors, size_t first, size_t count) {
  Tensors made;
  for (size_t k = 0; k < count; ++k) made.push_back(at::empty_like(tensors[first + k]));
  return made;
}

}  // namespace

Tensors TiledLoop::run_forward(const Block& block, const Tensors& operands) const {
  Tensors results = like(operands, 0, states_);
  std::vector<char*> to;
  for (const at::Tensor& t : results) to.push_back(static_cast<char*>(t.mutable_data_ptr()));
  in_tiles([&](int64_t first, int64_t last, uint8_t* fault) {
    Windows windows(tile_, block.widest);
    for (size_t k = 0; k < 2 * states_; ++k) windows.add(step_.result(k % states_));
    windows.allocate();
    StepInTiles::Room room(step_);
    std::vector<char*> held, made(states_);
    set_constants(step_, held);
    for (int64_t n = first; n < last; ++n) {
      const Tile tile{n * tile_, std::min((n + 1) * tile_, elements_)};
      for (size_t k = 0; k < step_.arguments(); ++k) held[k] = memory_of(operands[k]);
      for (size_t s = 0; s < block.forwards.size(); ++s) {
        if (s > 0) std::copy(made.begin(), made.end(), held.begin());
        for (size_t k = 0; k < states_; ++k) made[k] = windows.at(s % 2 * states_ + k, tile);
        step_.run(tile, block.forwards[s], room, held, made, fault);
      }
      for (size_t k = 0; k < states_; ++k) give(step_.result(k), tile, made[k], to[k]);
    }
  });
  return results;
}

Tensors TiledLoop::run_backward(const Block& block, const Tensors& operands) const {
  const size_t given = step_.arguments(), count = back_->results(), kept = block.forwards.size();
  Tensors results = like(operands, given, count);
  std::vector<char*> to;
  for (const at::Tensor& t : results) to.push_back(static_cast<char*>(t.mutable_data_ptr()));
  in_tiles([&](int64_t first, int64_t last, uint8_t* fault) {
    Windows windows(tile_, block.widest);
    for (size_t k = 0; k < kept * states_; ++k) windows.add(step_.result(k % states_));
    const size_t first_found = kept * states_;
    for (size_t k = 0; k < 2 * count; ++k) windows.add(back_->result(k % count));
    windows.allocate();
    StepInTiles::Room room(step_), room_back(*back_);
    std::vector<char*> held, held_back, next(states_), found(count);
    set_constants(step_, held);
    set_constants(*back_, held_back);
    for (int64_t n = first; n < last; ++n) {
      const Tile tile{n * tile_, std::min((n + 1) * tile_, elements_)};
      for (size_t k = 0; k < given; ++k) held[k] = memory_of(operands[k]);
      for (size_t k = 0; k < operands.size(); ++k) held_back[k] = memory_of(operands[k]);
      for (size_t s = 0; s < kept; ++s) {
        for (size_t k = 0; k < states_; ++k) next[k] = windows.at(s * states_ + k, tile);
        step_.run(tile, block.forwards[s], room, held, next, fault);
        std::copy(next.begin(), next.end(), held.begin());
      }
      for (size_t s = 0; s <= kept; ++s) {
        const size_t before = kept - s;  // steps before the one whose pullback this is
        for (size_t k = 0; k < states_; ++k)
          held_back[k] = before == 0 ? memory_of(operands[k]) : windows.at((before - 1) * states_ + k, tile);
        if (s > 0) std::copy(found.begin(), found.end(), held_back.begin() + static_cast<std::ptrdiff_t>(given));
        for (size_t k = 0; k < count; ++k) found[k] = windows.at(first_found + s % 2 * count + k, tile);
        back_->run(tile, block.backwards[before], room_back, held_back, found, fault);
      }
      for (size_t k = 0; k < count; ++k) give(back_->result(k), tile, found[k], to[k]);
    }
  });
  return results;
}

}  // namespace tower::compiler
