#include "exported/rewritten.h"

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "exported/archive.h"
#include "exported/models.h"

namespace exported_models {
namespace {

void append(std::string& out, uint64_t number, int bytes) {
  for (int k = 0; k < bytes; ++k, number >>= 8) out.push_back(static_cast<char>(number));
}

}  // namespace

std::string zip(const std::vector<Entry>& entries) {
  std::string out, directory;
  for (const Entry& e : entries) {
    const uint64_t offset = e.stated_offset.value_or(out.size()), size = e.stated_size.value_or(e.bytes.size());
    append(directory, 0x02014b50, 4);
    append(directory, 0, 6);
    append(directory, e.method, 2);
    append(directory, 0, 8);
    append(directory, size, 4);
    append(directory, size, 4);
    append(directory, e.name.size(), 2);
    append(directory, 0, 12);
    append(directory, offset, 4);
    directory += e.name;
    append(out, 0x04034b50, 4);
    append(out, 0, 22);
    append(out, e.name.size(), 2);
    append(out, 0, 2);
    out += e.name + e.bytes;
  }
  const size_t begin = out.size();
  out += directory;
  append(out, 0x06054b50, 4);
  append(out, 0, 4);
  append(out, entries.size(), 2);
  append(out, entries.size(), 2);
  append(out, directory.size(), 4);
  append(out, begin, 4);
  append(out, 0, 2);
  return out;
}

std::vector<Entry> entries_of(const std::string& name) {
  tower::exported::Archive archive(file(name));
  std::vector<Entry> entries;
  for (const std::string& record : archive.names_between("", ""))
    entries.push_back({"model/" + record, archive.text(record)});
  return entries;
}

Entry& find(std::vector<Entry>& entries, const std::string& name) {
  for (Entry& e : entries)
    if (e.name == "model/" + name) return e;
  throw std::logic_error("no record " + name);
}

std::string written(const std::string& bytes) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = testing::TempDir() + "tower_damaged_" + test->name() + ".pt2";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string with_graph_changed(const std::string& name,
                               const std::vector<std::pair<std::string, std::string>>& changes) {
  auto entries = entries_of(name);
  std::string& graph = find(entries, "models/model.json").bytes;
  for (const auto& [from, to] : changes) {
    const size_t at = graph.find(from);
    if (at == graph.npos) throw std::logic_error("no text " + from);
    graph.replace(at, from.size(), to);
  }
  return written(zip(entries));
}

}  // namespace exported_models
