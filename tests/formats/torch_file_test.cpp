// Files of torch.save: those of the real DeepSpeed in tests/golden, and hostile ones.
#include "formats/torch_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include <unistd.h>

#include "deepspeed/error.h"
#include "formats/safetensors.h"

namespace deepspeed::formats {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(DEEPSPEED_SOURCE_DIR) / "tests" / "golden" / "checkpoints";

// With its zeros.
template <size_t N>
std::string raw(const char (&text)[N]) {
  return {text, N - 1};
}

Pickle unpickle(const std::string& bytes) { return Pickle(std::as_bytes(std::span(bytes)), "test"); }

std::string refusal(const std::string& bytes) {
  try {
    unpickle(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointDamaged);
    return error.what();
  }
  return "";
}

TEST(TorchFile, EveryFileOfTheReferenceIsRead) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kGolden)) {
    if (entry.path().extension() != ".pt") continue;
    const TorchFile file(entry.path());
    const auto kind = file.root().kind;
    EXPECT_TRUE(kind == PickleValue::Kind::kDict || kind == PickleValue::Kind::kTensor) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 600);
}

TEST(TorchFile, WeightsOfAUniversalCheckpointAreThoseOfTheConverter) {
  const fs::path folder = kGolden / "stage2-fp32" / "universal" / "step" / "zero";
  const SafetensorsFile whole((kGolden / "stage2-fp32" / "zero_to_fp32.safetensors").string());
  int compared = 0;
  for (const auto& entry : whole.entries()) {
    const fs::path path = folder / entry.name / "fp32.pt";
    if (!fs::exists(path)) continue;
    const TorchFile file(path);
    const auto& tensor = file.root().at("param", "fp32.pt").tensor;
    EXPECT_EQ(tensor.shape, entry.shape);
    std::vector<std::byte> values(entry.size());
    file.read(tensor, values.data());
    EXPECT_EQ(std::memcmp(values.data(), whole.bytes(entry).data(), values.size()), 0) << entry.name;
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

TEST(TorchFile, RecordsKeepTheirState) {
  const TorchFile file(kGolden / "stage2-fp16" / "zero" / "step" / "zero_pp_rank_0_mp_rank_00_optim_states.pt");
  const auto& states = file.root().at("optimizer_state_dict", "file");
  const auto& scaler = states.at("loss_scaler", "optimizer_state_dict");
  EXPECT_EQ(scaler.kind, PickleValue::Kind::kObject);
  EXPECT_EQ(scaler.text, "deepspeed.runtime.fp16.loss_scaler DynamicLossScaler");
  EXPECT_GT(scaler.at("cur_scale", "loss_scaler").number, 0);
}

// One changed bit anywhere is an error that names the record, or changes nothing that is read.
TEST(TorchFile, ChangedBytesAreSeen) {
  const fs::path source = kGolden / "stage1-fp32" / "universal" / "step" / "zero" / "model.norm.weight" / "fp32.pt";
  std::ifstream stream(source, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(stream), {}};
  const fs::path copy = fs::temp_directory_path() / ("torch_file_test_" + std::to_string(::getpid()) + ".pt");
  const auto contents = [&](const std::string& bytes) {
    std::ofstream(copy, std::ios::binary) << bytes;
    const TorchFile file(copy);
    const auto& tensor = file.root().at("param", "fp32.pt").tensor;
    std::vector<std::byte> values(24 * sizeof(float));
    if (tensor.shape != std::vector<int64_t>{24}) throw Error(ErrorCode::kCheckpointDamaged, "test", "shape");
    file.read(tensor, values.data());
    return values;
  };
  const auto expected = contents(good);
  int refused = 0;
  for (size_t byte = 0; byte < good.size(); ++byte) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << (byte % 8)));
    try {
      EXPECT_EQ(contents(bad), expected) << "byte " << byte;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
  for (size_t size = 0; size < good.size(); size += 7) {
    std::ofstream(copy, std::ios::binary) << good.substr(0, size);
    EXPECT_THROW(TorchFile{copy}, Error) << size;
  }
  fs::remove(copy);
}

TEST(Pickle, NamesThatAreNotDataAreRefusedByName) {
  // os.system("true"), the textbook attack.
  const std::string message = refusal(
      "\x80\x02"
      "cos\nsystem\nX\x04" +
      raw("\0\0\0true\x85R."));
  EXPECT_NE(message.find("os.system"), std::string::npos) << message;
  EXPECT_NE(refusal("\x80\x04\x8c\x08"
                    "builtins\x8c\x04"
                    "eval\x93.")
                .find("builtins.eval"),
            std::string::npos);
  EXPECT_NE(refusal("\x80\x02"
                    "ctorch.serialization\nload\n.")
                .find("torch.serialization.load"),
            std::string::npos);
}

TEST(Pickle, ValuesOfAllKinds) {
  // {"a": [1, -2, 70000, 1.5, True, None], "b": (2**40, "x")}
  const std::string bytes =
      raw("\x80\x02}(X\x01\0\0\0"
          "a](K\x01J\xfe\xff\xff\xffJ\x70\x11\x01\0G\x3f\xf8\0\0\0\0\0\0\x88Ne"
          "X\x01\0\0\0"
          "b\x8a\x06\0\0\0\0\0\x01X\x01\0\0\0x\x86u.");
  const Pickle pickle = unpickle(bytes);
  const auto& list = pickle.root().at("a", "test").items;
  ASSERT_EQ(list.size(), 6u);
  EXPECT_EQ(list[0]->integer, 1);
  EXPECT_EQ(list[1]->integer, -2);
  EXPECT_EQ(list[2]->integer, 70000);
  EXPECT_EQ(list[3]->number, 1.5);
  EXPECT_TRUE(list[4]->boolean);
  EXPECT_EQ(list[5]->kind, PickleValue::Kind::kNone);
  EXPECT_EQ(pickle.root().at("b", "test").items[0]->integer, int64_t{1} << 40);
}

TEST(Pickle, HostileShapesOfDataAreRefused) {
  EXPECT_NE(refusal("\x80\x02]q" + raw("\0h\0a.")).find("contains itself"), std::string::npos);
  EXPECT_NE(refusal("\x80\x02]2a.").find("contains itself"), std::string::npos);
  std::string deep = "\x80\x02";
  for (int i = 0; i < 100'000; ++i) deep += ']';
  for (int i = 0; i < 99'999; ++i) deep += 'a';
  EXPECT_NE(refusal(deep + ".").find("deep"), std::string::npos);
  // Each list holds the one before twice: 2^60 values in a few hundred bytes.
  std::string laughs = "\x80\x02]";
  for (int i = 0; i < 60; ++i) laughs += raw("q\0(h\0h\0l");
  EXPECT_NE(refusal(laughs + "."), "");
  EXPECT_NE(refusal(""), "");
  EXPECT_NE(refusal("\x80\x02."), "");
  EXPECT_NE(refusal("\x80\x02X\xff\xff\xff\x7fhi."), "");
}

// Any bytes end in a value or an Error.
TEST(Pickle, RandomChangesNeverDoMore) {
  const TorchFile file(kGolden / "stage2-fp16" / "zero" / "step" / "zero_pp_rank_0_mp_rank_00_optim_states.pt");
  std::ifstream stream(file.path(), std::ios::binary);
  const std::string archive{std::istreambuf_iterator<char>(stream), {}};
  const auto records = read_zip(std::as_bytes(std::span(archive)), "test");
  std::string good;
  for (const auto& [name, record] : records) {
    if (name.ends_with("data.pkl")) good.assign(reinterpret_cast<const char*>(record.bytes.data()), record.bytes.size());
  }
  std::mt19937 random(1);
  for (int round = 0; round < 5000; ++round) {
    std::string bad = good;
    for (unsigned change = 0; change <= random() % 8; ++change) bad[random() % bad.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bad.resize(random() % bad.size());
    try {
      unpickle(bad);
    } catch (const Error&) {
    }
    std::string torn = archive;
    torn[random() % torn.size()] = static_cast<char>(random());
    const size_t tail = std::min<size_t>(torn.size(), 400);
    torn[torn.size() - 1 - random() % tail] = static_cast<char>(random());
    try {
      read_zip(std::as_bytes(std::span(torn)), "test");
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace deepspeed::formats
