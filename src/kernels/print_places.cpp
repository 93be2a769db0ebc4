// NOTE [Lanes in places]
// A program for one number of examples knows how many lanes a kernel has, and of each input and output in which memory
// it lies, and where. Such a kernel is given the list of the memories, and goes over all of its lanes by itself: a call
// collects no pointers, and copies no lanes.
//
// The last vector ends where the lanes do, and computes once more what the one before it has: no output is an input's
// memory. Where there are fewer lanes than a vector has, those that are missing repeat the last one, as they do in
// run_lanes (kernels/by_pointers.h), so that none divides by zero, and are not written. What is apart in memory is read
// and written one by one: that is faster than instructions that gather and scatter.
#include <algorithm>
#include <utility>

#include "kernels/printer.h"

namespace tower::compiler {

const Region::Place& Printer::place_of(const std::string& array, size_t i) const {
  return region_.placed->places[array == "%inputs" ? i : region_.inputs.size() + i];
}

std::string Printer::in_place(const std::string& array, size_t i) const {
  const Region::Place& place = place_of(array, i);
  return "getelementptr i8, ptr %memory" + std::to_string(place.memory) + ", i64 " + std::to_string(place.offset);
}

void Printer::print_memories() {
  std::set<int64_t> memories;
  for (const uint64_t i : inputs_read()) memories.insert(place_of("%inputs", i).memory);
  for (size_t i = 0; i < region_.outputs.size(); ++i) memories.insert(place_of("%outputs", i).memory);
  for (const int64_t m : memories)
    print(Type::b1, R"(
  %place~ = getelementptr ptr, ptr %inputs, i64 {m}
  %memory{m} = load ptr, ptr %place~
)",
          {{"m", std::to_string(m)}});
}

// Vectors from the first lane on; the last one begins so early that it ends with the lanes.
void Printer::print_loop_in_places() {
  std::vector<size_t> all;
  for (size_t i = 0; i < region_.outputs.size(); ++i) all.push_back(i);
  std::vector<Id> nodes = inside_[0];
  if (!reads_late_) std::erase_if(nodes, [&](Id id) { return once_[id]; });
  loop_ = "0";
  const int64_t last = std::max<int64_t>(region_.placed->lanes - lanes_, 0);
  const Holes holes = {{"step", std::to_string(lanes_)}, {"last", std::to_string(last)}};
  begin_block("enter0");
  begin_block("loop0");
  if (last > 0) {
    print(Type::b1, "  %b0 = phi i64 [ 0, %enter0 ], [ %next0, %done0 ]\n", holes);
    print_turn(nodes, all, "%b0", 1);
    begin_block("done0");
    print(Type::b1, R"(
  %more0 = icmp slt i64 %b0, {last}
  %behind0 = add i64 %b0, {step}
  %is.last0 = icmp sgt i64 %behind0, {last}
  %next0 = select i1 %is.last0, i64 {last}, i64 %behind0
  br i1 %more0, label %loop0, label %enter1
)",
          holes);
  } else {
    print_turn(nodes, all, "0", 1);
    body_ += "  br label %enter1\n";
  }
  body_ += "enter1:\n  ret void\n}\n";
}

// The lane that each of a vector is, from its first one on.
std::vector<int64_t> Printer::lanes_there() const {
  std::vector<int64_t> lanes;
  for (int64_t i = 0; i < lanes_; ++i) lanes.push_back(std::min(i, region_.placed->lanes - 1));
  return lanes;
}

// Only the lanes that are there are read and written by `access`.
template <class F>
void Printer::with_mask_of_lanes(F&& access) {
  std::string mask = "<";
  for (int64_t i = 0; i < lanes_; ++i)
    mask += std::string(i ? ", " : "") + (i < region_.placed->lanes ? "i1 true" : "i1 false");
  const std::string before = std::exchange(mask_, mask + ">");
  masked_ = true;
  access();
  masked_ = false;
  mask_ = before;
}

void Printer::load_in_place(Type t, const std::string& pointer, const std::string& begin, const Region::Place& place,
                            const std::string& result) {
  const std::vector<int64_t> lanes = lanes_there();
  if (place.stride == 1 && lanes.back() == lanes_ - 1) return load(t, pointer, begin, 0, result);
  if (place.stride == 0 || lanes.back() == 0) return load_for_all(t, pointer, result);
  const std::string memory = in_memory(t), vector = vector_of(in_memory(t), lanes_);
  if (place.stride == 1) {
    const std::string read = fresh();
    with_mask_of_lanes([&] { load(t, pointer, begin, 0, read); });
    std::string repeated;
    for (const int64_t lane : lanes) repeated += (repeated.empty() ? "i32 " : ", i32 ") + std::to_string(lane);
    print_value(t, "  {result} = shufflevector {V} {read}, {V} poison, {S} <{repeated}>\n",
                {{"read", read}, {"repeated", repeated}}, result);
    return;
  }
  const std::string first = line("getelementptr " + memory + ", ptr " + pointer + ", i64 " +
                                 line("mul i64 " + begin + ", " + std::to_string(place.stride)));
  std::string all = "poison";
  for (int64_t i = 0; i < lanes_; ++i) {
    const std::string there = line("getelementptr " + memory + ", ptr " + first + ", i64 " +
                                   std::to_string(lanes[static_cast<size_t>(i)] * place.stride));
    const std::string one = line("load " + memory + ", ptr " + there);
    all = line("insertelement " + vector + " " + all + ", " + memory + " " + one + ", i32 " + std::to_string(i),
               i + 1 == lanes_ && t != Type::b1 ? result : std::string());
  }
  if (t == Type::b1) line("icmp ne " + vector + " " + all + ", zeroinitializer", result);
}

void Printer::store_in_place(Type t, std::string v, const std::string& pointer, const std::string& begin,
                             const Region::Place& place) {
  const std::vector<int64_t> lanes = lanes_there();
  if (place.stride == 1 && lanes.back() == lanes_ - 1) return store(t, std::move(v), pointer, begin, 0);
  if (place.stride == 1) return with_mask_of_lanes([&] { store(t, std::move(v), pointer, begin, 0); });
  const std::string memory = in_memory(t), vector = vector_of(in_memory(t), lanes_);
  if (t == Type::b1) v = line("zext " + type(t) + " " + v + " to " + vector);
  const std::string first = line("getelementptr " + memory + ", ptr " + pointer + ", i64 " +
                                 line("mul i64 " + begin + ", " + std::to_string(place.stride)));
  for (int64_t i = 0; i <= (place.stride == 0 ? 0 : lanes.back()); ++i) {
    const std::string there =
        line("getelementptr " + memory + ", ptr " + first + ", i64 " + std::to_string(i * place.stride));
    const std::string one = line("extractelement " + vector + " " + v + ", i32 " + std::to_string(i));
    body_ += "  store " + memory + " " + one + ", ptr " + there + "\n";
  }
}

}  // namespace tower::compiler
