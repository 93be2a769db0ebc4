// Who is no process of a mesh, and what a secret (TOWER_MESH_SECRET) keeps such from.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "mesh/engine.h"
#include "mesh/groups.h"
#include "mesh/harness.h"
#include "mesh/secret.h"
#include "mesh/store.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using tower::Mesh;
using tower::mesh::MeshStore;
using tower::mesh::Secret;

Mesh made() { return Mesh::from_environment({{"data", -1}}, {.timeout = std::chrono::seconds(2)}); }
void expect_well(const Mesh& mesh) {
  EXPECT_EQ(tower::sum_across(mesh, "data", number(1)).item<double>(), mesh.size());
}
uint16_t port() { return static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))); }

// A connection to the mesh's port at an address of this machine; negative: nobody listens there.
int connect_to(const char* address) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  ::inet_pton(AF_INET, address, &there.sin_addr);
  there.sin_port = htons(port());
  if (::connect(socket, reinterpret_cast<sockaddr*>(&there), sizeof(there)) == 0) return socket;
  ::close(socket);
  return -1;
}

// RFC 2202, section 3.
TEST(Secrets, HaveTheCodesOfTheStandard) {
  EXPECT_EQ(Secret(std::string(20, '\x0b')).code_of("Hi There"), "b617318655057264e28bc0b6fb378c8ef146be00");
  EXPECT_EQ(Secret("Jefe").code_of("what do ya want for nothing?"), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
  EXPECT_EQ(Secret(std::string(20, '\xaa')).code_of(std::string(50, '\xdd')),
            "125d7342b9ac11cd91a39af48aa17b4f63f175d3");
  EXPECT_EQ(Secret(std::string(80, '\xaa')).code_of("Test Using Larger Than Block-Size Key - Hash Key First"),
            "aa4ae5e15272d00e95705637ce8a3b55ed402112");
  EXPECT_TRUE(Secret("a").is_code_of(Secret("a").code_of("b"), "b"));
  EXPECT_FALSE(Secret("a").is_code_of(Secret("c").code_of("b"), "b"));
  EXPECT_FALSE(Secret("a").is_code_of("", "b"));
  EXPECT_NE(Secret::draw(), Secret::draw());
  EXPECT_EQ(Secret::draw().size(), Secret::kDrawn);
}

// 127.0.0.2 is this machine's, too.
TEST(Strangers, AreNotHeardAtOtherAddresses) {
  expect_all(1, [](int) {
    const Mesh mesh = made();
    const int there = connect_to("127.0.0.1");
    EXPECT_GE(there, 0);
    EXPECT_LT(connect_to("127.0.0.2"), 0);
    ::close(there);
  });
}

// They come first, and stay connected.
TEST(Strangers, DoNotDisturbTheStoreWithWhatItDoesNotUnderstand) {
  expect_all(2, [](int rank) {
    ::setenv("TOWER_MESH_SECRET", "of this test", 1);
    if (rank == 1) {
      int there = -1;
      for (int tries = 0; there < 0 && tries < 200; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        there = connect_to("127.0.0.1");
      }
      const std::string words = "GET / HTTP/1.0\r\n\r\n" + std::string(3000, '\xff');
      EXPECT_GT(::send(there, words.data(), words.size(), MSG_NOSIGNAL), 0);
    }
    expect_well(made());
  });
}

TEST(Strangers, WithoutTheSecretAreRefused) {
  for (const char* other : {"another", ""})
    expect_all(2, [other](int rank) {
      if (rank == 0 || *other) ::setenv("TOWER_MESH_SECRET", rank == 0 ? "of this test" : other, 1);
      const std::string text = message_of<tower::MeshError>([] { made(); });
      EXPECT_TRUE(contains(text, "TOWER_MESH_SECRET")) << text;
      EXPECT_TRUE(contains(text, *other      ? "somebody with another secret wrote to the mesh's store"
                                 : rank == 0 ? "somebody who has no secret wrote to the mesh's store"
                                             : "another process has a secret"))
          << text;
      // Process 0 has the store, in which the other has yet to read.
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    });
}

TEST(Strangers, WithTheSecretAreProcesses) {
  expect_all(3, [](int) {
    ::setenv("TOWER_MESH_SECRET", std::string(100, 'x').c_str(), 1);
    const Mesh mesh = made();
    expect_well(mesh);
    expect_well(made());
  });
}

// A value that was written for another key, or changed on the way, is not taken for what it is not.
TEST(Strangers, CannotCopyOrChangeWhatIsInTheStore) {
  expect_all(1, [](int) {
    const auto shared = tower::mesh::reach_store("127.0.0.1", port(), true, std::chrono::seconds(2));
    MeshStore store(shared, "mesh/", Secret("known"), std::chrono::seconds(1));
    const std::vector<uint8_t> value{1, 2, 3};
    store.set("a", value);
    EXPECT_EQ(store.get("a"), value);
    const auto refused = [&](const char* key) {
      return contains(message_of<tower::MeshError>([&] { store.get(key); }), "wrote to the mesh's store");
    };
    std::vector<uint8_t> sealed = shared->get("mesh/a");
    shared->set("mesh/b", sealed);
    EXPECT_TRUE(refused("b"));
    sealed.back() ^= 1;
    shared->set("mesh/c", sealed);
    EXPECT_TRUE(refused("c"));
    shared->set("mesh/d", std::vector<uint8_t>{'c', 'x'});
    EXPECT_TRUE(refused("d"));
    shared->set("mesh/e", std::vector<uint8_t>{});
    EXPECT_TRUE(refused("e"));
    shared->set("mesh/f", std::vector<uint8_t>{'p', 1, 2, 3});
    EXPECT_TRUE(refused("f"));
  });
}

// Somebody has taken the place of process 1 at the connection itself.
TEST(Strangers, AtTheOtherEndOfAConnectionHaveToProveThatTheyKnow) {
  for (const char* other : {"of this test", "another"})
    expect_all(2, [other](int rank) {
      const auto group = processes::group_of(rank, 2, "taken", std::chrono::seconds(2));
      auto engine = std::make_shared<tower::mesh::Engine>(std::vector<tower::MeshAxis>{{"data", 2}}, rank,
                                                          tower::MeshOptions{.timeout = std::chrono::seconds(2)},
                                                          group->getStore(), group);
      engine->add(0, group);
      const auto prove = [&] { engine->prove(Secret(rank == 0 ? "of this test" : other), "mesh/"); };
      if (std::string_view(other) == "of this test") return prove();
      const std::string text = message_of<tower::MeshError>(prove);
      EXPECT_TRUE(contains(text, "who is connected in the place of process " + std::to_string(1 - rank) +
                                     " does not know the secret (TOWER_MESH_SECRET)"))
          << text;
    });
}

}  // namespace
