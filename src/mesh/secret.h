// What processes of one mesh know, and others do not.
#pragma once

#include <string>
#include <string_view>

namespace tower::mesh {

// NOTE [Secrets]
// Whoever can reach the store of a mesh can write to it, and whoever can reach gloo's ports can connect in the place of
// a process: neither asks who it is. With a secret that all processes have (TOWER_MESH_SECRET), each value in the store
// has a code beside it (HMAC-SHA1, RFC 2104, of its key and itself), so that addresses and reasons are those that
// processes of the mesh wrote; and when the connections are made, the processes at both ends of each prove to each
// other that they know the secret, by a code of numbers that both have drawn for it. The secret itself is never sent.
// Messages that follow are not encrypted, nor have they codes: who can change what goes over the wire can change them.
class Secret {
 public:
  Secret() = default;  // none
  explicit Secret(std::string text) : text_(std::move(text)) {}
  /// TOWER_MESH_SECRET, if it is set.
  static Secret from_environment();

  bool given() const { return !text_.empty(); }
  /// Hexadecimal digits that nobody finds who does not know the secret.
  std::string code_of(std::string_view message) const;
  bool is_code_of(std::string_view code, std::string_view message) const;

  static constexpr size_t kCode = 40, kDrawn = 32;  // digits
  /// A number that was not there before, in hexadecimal digits.
  static std::string draw();

 private:
  std::string text_;
};

}  // namespace tower::mesh
