#include "gpipe/distributed/meet/slurm_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tools/testing/wrong_input.h"

namespace gpipe::distributed {
namespace {

using ::testing::ElementsAre;

TEST(HostList, NamesRangesAndBoth) {
  EXPECT_THAT(expand_host_list("login"), ElementsAre("login"));
  EXPECT_THAT(expand_host_list("a,b-1.site"), ElementsAre("a", "b-1.site"));
  EXPECT_THAT(expand_host_list("node[03-05,7]"),
              ElementsAre("node03", "node04", "node05", "node7"));
  EXPECT_THAT(expand_host_list("gpu[8-10],login,x[1]"),
              ElementsAre("gpu8", "gpu9", "gpu10", "login", "x1"));
}

TEST(HostList, ZerosAreKeptWhereTheNumberGrows) {
  EXPECT_THAT(expand_host_list("n[099-101]"), ElementsAre("n099", "n100", "n101"));
}

TEST(HostList, SeveralBracketsInOneName) {
  EXPECT_THAT(expand_host_list("rack[0-1]node[01-02]-ib"),
              ElementsAre("rack0node01-ib", "rack0node02-ib", "rack1node01-ib", "rack1node02-ib"));
}

TEST(HostList, TasksPerNode) {
  EXPECT_THAT(expand_tasks_per_node("4"), ElementsAre(4));
  EXPECT_THAT(expand_tasks_per_node("2(x3),1"), ElementsAre(2, 2, 2, 1));
}

using Row = testing::WrongInput<>;

class WrongHostList : public ::testing::TestWithParam<Row> {};

TEST_P(WrongHostList, IsRefused) { testing::expect_refused(GetParam()); }

Row hosts(const char* name, const std::string& text, const std::string& part) {
  return {name, [text] { expand_host_list(text); }, typeid(std::invalid_argument), {part}};
}

Row tasks(const char* name, const std::string& text, const std::string& part) {
  return {name, [text] { expand_tasks_per_node(text); }, typeid(std::invalid_argument), {part}};
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongHostList,
    ::testing::Values(
        hosts("Empty", "", "empty"), hosts("EmptyEntry", "a,,b", "empty"),
        hosts("EmptyBracket", "a[]", "empty"), hosts("NotClosed", "a[1-2", "do not match"),
        hosts("NotOpened", "a1-2]", "do not match"), hosts("Nested", "a[1-[2]]", "do not match"),
        hosts("NoNumber", "a[1-x]", "'x'"), hosts("Negative", "a[-1]", "''"),
        hosts("Backwards", "a[5-3]", "'5-3'"), hosts("TooMany", "a[0-99999999999]", "65536"),
        hosts("TooLarge", "a[9223372036854775807]", "too many digits"),
        hosts("TooWide", "a[" + std::string(100000, '0') + "0-65535]", "too many digits"),
        hosts("TooManyBrackets", "a[1][1][1][1][1][1][1][1][1]", "too many brackets"),
        hosts("TooManyProducts", "a[0-9999][0-9999]", "65536"),
        hosts("TooLargeANumber", "a[1-99999999999999999999]", "99999"),
        hosts("Space", "a b", "characters"), tasks("NoTasks", "", "empty"),
        tasks("NoTimes", "2(x", "do not match"), tasks("NoCount", "2(x)", "''"),
        tasks("Word", "two", "'two'"), tasks("ManyTasks", "1(x99999999)", "65536")),
    testing::row_name);

}  // namespace
}  // namespace gpipe::distributed
