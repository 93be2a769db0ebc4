// What prints a kernel (kernels/emit.h): pointers, loops over lanes, loads and stores. kernels/print_loops.cpp has the
// loops that are inside of a lane, kernels/print_folds.cpp passes over rows of them, kernels/print_walk.cpp rows one
// after the other, kernels/print_stretches.cpp loops over lanes that read elsewhere, kernels/print_places.cpp lanes
// whose places are known.
#pragma once

#include <map>

#include "kernels/lines.h"

namespace tower::compiler {

class Printer : private Lines {
 public:
  Printer(const Region& region, int64_t lanes, Math math);
  KernelText kernel(const std::string& name);

 private:
  std::string value(Id id, int part) const;
  void print_pointer(const std::string& prefix, const std::string& array, size_t i);
  void print_pointers();
  void load_for_all(Type t, const std::string& pointer, const std::string& result);
  std::string pointer_of(const std::string& array, const std::string& prefix, size_t i);
  void print_loop();
  void print_walk();
  void print_row_at(size_t input);
  std::set<uint64_t> inputs_read() const;
  bool has_few_functions() const;

  // NOTE [Lanes in places]
  const Region::Place& place_of(const std::string& array, size_t i) const;
  std::string in_place(const std::string& array, size_t i) const;
  void print_memories();
  void print_loop_in_places();
  std::vector<int64_t> lanes_there() const;
  template <class F>
  void with_mask_of_lanes(F&& access);
  void load_in_place(Type t, const std::string& pointer, const std::string& begin, const Region::Place& place,
                     const std::string& result);
  void store_in_place(Type t, std::string v, const std::string& pointer, const std::string& begin,
                      const Region::Place& place);
  std::string end() const { return region_.walked > 0 ? std::to_string(region_.walked) : "%end"; }  // of lanes
  void print_turn(const std::vector<Id>& nodes, const std::vector<size_t>& written, const std::string& begin,
                  int together);
  std::string address(const std::string& pointer, Type type, const std::string& begin, int part);
  Holes holes_of_access(const char* what, Type t, const std::string& pointer, const std::string& begin, int part);
  void load(Type t, const std::string& pointer, const std::string& begin, int part, const std::string& result);
  void store(Type t, std::string v, const std::string& pointer, const std::string& begin, int part);
  void print_node(Id id, const std::string& begin, int part);
  void print_sum(Type t, std::string v, const std::string& pointer);
  void print_store(size_t output, const std::string& begin, int part);

  // Systems of numbers.
  void print_memory();
  std::string solver_of(const Node& n) const;
  std::string vector_at(Id system, int64_t i);
  void print_solve(Id id);
  void print_part(Id id);
  void print_look_up(Id id, const std::string& begin, int part);
  struct Straight {
    Id first;  // the same for all lanes; none: zero
    bool backwards;
  };
  std::optional<Straight> straight(Id place) const;
  bool is_for_all(Id id) const;
  bool is_place(Id id) const;
  void print_straight(Id id, Straight from, const std::string& begin, int part);

  // NOTE [Stretches of lanes]
  struct Stretch {
    int64_t begin, end;  // lanes
  };
  std::optional<int64_t> bound(const Node& n) const;
  void plan_stretches();
  void know(const Stretch& stretch);
  std::optional<bool> known(Id id) const { return known_.size() == 0 ? std::nullopt : known_[id]; }
  void print_loops_of_stretches(const std::vector<size_t>& written);

  // Loops of numbers.
  struct KeptCarries {             // NOTE [Kept in memory]
    std::vector<uint64_t> places;  // of the carries, the largest first
    std::vector<int64_t> offsets;  // of each, in bytes
    int64_t bytes = 0;             // of a step
  };
  static size_t place(LoopId loop) { return static_cast<size_t>(plain(loop) + 1); }  // in inside_ and depth_
  void place_nodes();
  int64_t work() const;
  std::set<Id> of_condition(LoopId number) const;
  void begin_block(const std::string& name);
  void keep_block_short();
  void print_loop_of_numbers(LoopId number, const std::string& begin);
  template <class F>
  void for_carries(LoopId number, F&& f) const;
  void print_carries(LoopId number, const std::string& before);
  void print_next(LoopId number);
  void print_loop_backwards(LoopId number, const std::string& begin);
  void plan_kept();
  void print_memory_of_loops();
  std::string place_of_kept(LoopId number, const KeptCarries& kept, size_t i);
  void print_keep(LoopId number);
  void print_kept(Id id);
  static constexpr uint64_t kNoOutput = ~uint64_t{0};
  struct OutputsOfSteps {
    LoopId loop;
    Id value;
    std::vector<uint64_t> outputs;  // by step
  };
  void plan_stacks();
  std::string pointer_in_step(LoopId number, const char* array, const std::vector<uint64_t>& of_steps);
  void print_element(Id id, const std::string& begin);
  void print_outputs_of_step(LoopId number, const std::string& begin);
  std::string label_of(LoopId number) const { return loop_ + "_" + std::to_string(plain(number)); }

  // Rows.
  struct Pass {
    std::vector<Id> of_row;       // what is computed once for the row, before
    std::vector<Id> nodes;        // for each lane, in order
    std::vector<Id> folds;        // what the lanes' nodes come to
    std::vector<size_t> outputs;  // written
    // How it is printed.
    std::string number = {};
    std::string before = {};  // the block that leads to it
    int together = 1;         // vectors a turn
    bool has_blocks = false;  // NOTE [Rows in a kernel]
  };
  void plan_rows();
  void print_rows();
  void print_pass(Pass& pass);
  void print_turns(const Pass& pass);
  void print_blocks(const Pass& pass);
  void print_rest(const Pass& pass, const std::map<Id, std::string>& whole);
  void print_ends(const Pass& pass, const std::map<Id, std::string>& whole);
  void label(const Pass& pass, const std::string& name);
  Holes holes(const Pass& pass, const Holes& more = {}) const;
  std::string one_of(const Pass& pass, const char* set, Id fold);
  void print_place(Id id, const std::string& begin, int part);
  std::string counted(const char* integer) const;
  Region::OfRow::How how(Id fold) const { return region_.of_row_at(graph_[fold])->how; }
  Id folded(Id fold) const { return region_.of_row_at(graph_[fold])->folded; }
  std::string none(Id fold) const;
  std::string both(Region::OfRow::How how, Type of, const std::string& a, const std::string& b,
                   const std::string& result = {});
  void across(Region::OfRow::How how, Type of, std::string v, const std::string& result);
  bool is_in_blocks(Id id) const;
  static std::string level(Id fold, int number);
  std::string load_level(Id fold, int number);
  void store_level(Id fold, int number, const std::string& v);
  std::string pointer_of_kept(size_t k) { return pointer_of("%outputs", "%po", region_.outputs.size() + k); }

  const Region& region_;
  ById<Id, bool> live_;                         // but what only steps of loops read of inputs
  std::string loop_;                            // over lanes: the one that is printed
  std::vector<std::vector<Id>> inside_;         // the live nodes in no loop of numbers, and in each
  std::vector<int> depth_;                      // of none, and of each
  std::string block_;                           // the one that is printed …
  size_t block_at_ = 0;                         // … or a part of it, from here on
  std::set<std::string> printed_;               // loops of numbers
  std::map<LoopId, KeptCarries> keeps_;         // of loops that others go back through
  std::set<size_t> in_steps_;                   // outputs that the steps of loops write …
  std::vector<OutputsOfSteps> of_steps_;        // … by what they are of
  std::map<std::string, std::string> solvers_;  // by name
  ById<Id, bool> once_;                         // nodes that are the same for all lanes
  std::vector<Pass> passes_;
  std::vector<Id> kept_;    // nodes whose values are kept in memory …
  std::set<Id> in_memory_;  // … and are there by now
  std::vector<Stretch> stretches_;
  ById<Id, std::optional<bool>> known_;  // booleans, in the stretch that is printed; of no stretch: empty
  bool many_ = false;                    // inputs and outputs: NOTE [Many loads and stores]
  bool reads_late_ = false;              // what all lanes share: where it is used, and not before the lanes
  bool masked_ = false;                  // lanes that do not count are neither read nor written
};

}  // namespace tower::compiler
