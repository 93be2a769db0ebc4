// Files of models with something else in them: the records that Python wrote, written again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace exported_models {

/// An entry of an archive, and what its directory says of it.
struct Entry {
  std::string name, bytes;
  std::optional<uint32_t> stated_size = std::nullopt, stated_offset = std::nullopt;
  uint16_t method = 0;
};

/// A zip file of stored records without checksums.
std::string zip(const std::vector<Entry>& entries);
/// The records of a model's file.
std::vector<Entry> entries_of(const std::string& name);
/// One of them, by its name in the archive's folder.
Entry& find(std::vector<Entry>& entries, const std::string& name);
/// A file of these bytes, for the test that runs.
std::string written(const std::string& bytes);
/// A model's file, in whose graph the first of each of these texts is replaced by the other.
std::string with_graph_changed(const std::string& name,
                               const std::vector<std::pair<std::string, std::string>>& changes);

}  // namespace exported_models
