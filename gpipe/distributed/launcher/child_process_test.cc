#include "gpipe/distributed/launcher/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace gpipe::distributed {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class ChildProcessTest : public ::testing::Test {
 protected:
  std::string make_file(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = ::testing::TempDir() + "/" + name;
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  // The StartError of `act` as "exit code: message".
  template <typename Act>
  std::string refusal(Act act) {
    try {
      act();
    } catch (const StartError& error) {
      return std::to_string(error.exit_code()) + ": " + error.what();
    }
    return "nothing was thrown";
  }

  int status_after(const std::string& script) {
    return std::system(("exec /bin/sh -c '" + script + "'").c_str());
  }

  ChildOptions options(const std::string& script) {
    ChildOptions result;
    result.program = "/bin/sh";
    result.arguments = {"sh", "-c", script};
    ParentState& parent = result.parent.emplace();
    sigprocmask(SIG_SETMASK, nullptr, &parent.signal_mask);
    sigaction(SIGPIPE, nullptr, &parent.pipe_signal);
    sigaction(SIGCHLD, nullptr, &parent.child_signal);
    parent.open_files = 100;
    return result;
  }

  // All that a child writes. Expects that the child ends with exit code 0.
  std::string output_of(const ChildOptions& child_options) {
    const ChildProcess child = start_child(child_options);
    int status = -1;
    EXPECT_EQ(waitpid(child.pid, &status, 0), child.pid);
    EXPECT_EQ(status, 0);
    char text[4096];
    const ssize_t size = read(child.output, text, sizeof text);
    close(child.output);
    close(child.error);
    return std::string(text, size < 0 ? 0 : static_cast<std::size_t>(size));
  }
};

TEST_F(ChildProcessTest, FindsProgramsAsAShellDoes) {
  const std::string file = make_file("a_program", "#!/bin/sh\n", 0755);
  const std::string folder = ::testing::TempDir();
  EXPECT_THAT(find_program("sh", "/nowhere:/bin", ""), "/bin/sh");
  EXPECT_THAT(find_program("a_program", "/bin:" + folder, ""), EndsWith("/a_program"));
  EXPECT_THAT(find_program("./a_program", "/bin", folder), EndsWith("/./a_program"));
  EXPECT_EQ(find_program(file, "", "/elsewhere"), file);
}

TEST_F(ChildProcessTest, SaysWhyAProgramCannotBeStarted) {
  const std::string folder = ::testing::TempDir();
  make_file("no_program", "text", 0644);
  EXPECT_THAT(refusal([&] { find_program("missing", "/bin", folder); }),
              HasSubstr("127: there is no program missing in the folders of PATH"));
  EXPECT_THAT(refusal([&] { find_program("./missing", "/bin", folder); }),
              HasSubstr("127: there is no program " + folder));
  EXPECT_THAT(refusal([&] { find_program("", "/bin", folder); }), HasSubstr("127: "));
  EXPECT_THAT(refusal([&] { find_program("./no_program", "/bin", folder); }),
              HasSubstr("chmod +x"));
  EXPECT_THAT(refusal([&] { find_program(folder, "/bin", ""); }), HasSubstr("126: "));
  EXPECT_THAT(refusal([&] { find_program(folder, "/bin", ""); }), HasSubstr("it is a folder"));
  make_file("here", "#!/bin/sh\n", 0755);
  EXPECT_THAT(refusal([&] { find_program("here", "/bin", folder); }), HasSubstr("give ./here"));
  EXPECT_THAT(refusal([&] { find_program("//examples/mlp:mlp", "/bin", folder); }),
              HasSubstr("bazel-bin/examples/mlp/mlp"));
}

TEST_F(ChildProcessTest, ExplainsEnds) {
  EXPECT_EQ(describe_end(status_after("exit 3")), "ended with exit code 3");
  EXPECT_EQ(describe_end(status_after("exit 139")),
            "ended with exit code 139, by which shells report SIGSEGV");
  EXPECT_EQ(describe_end(9), "was ended by SIGKILL (signal 9)");
  EXPECT_EQ(describe_end(11 | 0x80), "was ended by SIGSEGV (signal 11), core dumped");
  EXPECT_EQ(describe_end(40), "was ended by signal 40");
  EXPECT_EQ(exit_code_of(status_after("exit 3")), 3);
  EXPECT_EQ(exit_code_of(9), 137);
}

TEST_F(ChildProcessTest, AFileThatNoKernelRunsIsAnError) {
  ChildOptions wrong = options("");
  wrong.program = make_file("text", "no program\n", 0755);
  EXPECT_THAT(refusal([&] { start_child(wrong); }), HasSubstr("#!/bin/sh"));
  wrong.program = make_file("script", "#!/no/interpreter\n", 0755);
  EXPECT_THAT(refusal([&] { start_child(wrong); }), HasSubstr("interpreter"));
  wrong = options("");
  wrong.directory = "/no/folder";
  EXPECT_THAT(refusal([&] { start_child(wrong); }), HasSubstr("in /no/folder"));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child is left
}

TEST_F(ChildProcessTest, HasItsOwnSessionAndWhatItWasGiven) {
  ChildOptions child = options("cut -d ' ' -f 1,5,6 /proc/$$/stat; echo $A; pwd; ulimit -n; cat");
  child.environment = {"A=b c", "PATH=/usr/bin:/bin"};
  child.directory = "/usr";
  const std::string output = output_of(child);
  const std::string pid = output.substr(0, output.find(' '));
  EXPECT_EQ(output, pid + " " + pid + " " + pid + "\nb c\n/usr\n100\n");
}

TEST_F(ChildProcessTest, ReadsAPipeAndSharesTheErrorOutput) {
  ChildOptions child = options("read line; echo got $line; [ /proc/$$/fd/2 -ef /proc/$PPID/fd/2 ]");
  child.input = ChildInput::kPipe;
  child.shares_error = true;
  const ChildProcess process = start_child(child);
  EXPECT_EQ(process.error, -1);
  EXPECT_EQ(write(process.input, "it\n", 3), 3);
  int status = -1;
  EXPECT_EQ(waitpid(process.pid, &status, 0), process.pid);
  EXPECT_EQ(status, 0);
  char text[16];
  EXPECT_EQ(std::string(text, read(process.output, text, sizeof text)), "got it\n");
  close(process.input);
  close(process.output);
}

TEST_F(ChildProcessTest, GetsBackTheSignalsOfItsParent) {
  ChildOptions child = options("trap 'echo got it' PIPE; kill -PIPE $$");
  child.environment = {"PATH=/usr/bin:/bin"};
  struct sigaction action = {};
  action.sa_handler = SIG_IGN;
  struct sigaction before = {};
  sigaction(SIGPIPE, &action, &before);
  // If SIGPIPE were still ignored, the shell could not trap it.
  EXPECT_EQ(output_of(child), "got it\n");
  sigaction(SIGPIPE, &before, nullptr);
}

}  // namespace
}  // namespace gpipe::distributed
