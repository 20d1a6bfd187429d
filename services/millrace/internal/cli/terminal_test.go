package cli_test

import (
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/tty/ttytest"
)

// screen is a terminal, by default of 100 columns and 30 rows: the program has tty, seen is the
// text on the screen, and keyboard is the input of the person.
type screen struct {
	tty      *os.File
	keyboard io.Writer
	seen     *buffer
}

func openScreen(t *testing.T) *screen {
	t.Helper()
	return openScreenOf(t, 100, 30)
}

func openScreenOf(t *testing.T, columns, rows uint16) *screen {
	t.Helper()
	s := ttytest.Open(t, columns, rows)
	return &screen{tty: s.TTY, keyboard: s.Keyboard, seen: s.Seen}
}

// sees waits until the screen has shown a text matching a pattern.
func (s *screen) sees(t *testing.T, pattern string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	require.Eventually(t, func() bool { return re.MatchString(s.seen.String()) }, hang, time.Millisecond,
		"the screen does not show %s", pattern)
}

func (s *screen) types(t *testing.T, keys string) {
	t.Helper()
	_, err := io.WriteString(s.keyboard, keys)
	require.NoError(t, err)
}

// start runs a command on the screen; the function waits for its exit code.
func (s *screen) start(r *rig, args ...string) (wait func(*testing.T) int) {
	return r.start(s.tty, s.tty, s.tty, args...)
}

func TestAConversationOnATerminal(t *testing.T) {
	var a answers
	stopped := make(chan struct{})
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		messages := in.GetChat().GetMessages()
		if messages[len(messages)-1].GetContent() != "endless" {
			return a.generate(in, s)
		}
		_ = s.Send(begun(in))
		_ = s.Send(tokens(0, 0, "for ever"))
		<-s.Context().Done()
		close(stopped)
		return s.Context().Err()
	}})
	s := openScreen(t)
	wait := s.start(r, "chat")
	s.sees(t, `m; /help lists the commands`)
	s.sees(t, `> `)
	s.types(t, "wrong line\x03one\r") // Ctrl-C clears the line
	s.sees(t, `re: one\r\n\(2 tokens`)
	s.sees(t, `(?s)2 tokens.*> `)
	s.types(t, "endless\r")
	s.sees(t, `for ever`)
	r.signals <- syscall.SIGINT // the terminal is not raw now: Ctrl-C is a signal
	<-stopped
	s.sees(t, `w1, stopped\)`)
	s.sees(t, `(?s)stopped\).*> `)
	s.types(t, "fail\r") // a failure does not end the program
	s.sees(t, `reason: PANIC`)
	s.sees(t, `(?s)PANIC.*> `)
	s.types(t, "/bogus\r")
	s.sees(t, `no command /bogus`)
	s.sees(t, `(?s)no command /bogus.*> `)
	s.types(t, "\x1b[A\x1b[A\x1b[A\x1b[A\r") // up four times: the first line
	s.sees(t, `(?s)bogus.*re: one\r\n\(2 tokens`)
	s.sees(t, `(?s)bogus.*re: one\r\n\(2 tokens.*> `)
	s.types(t, "\x04") // Ctrl-D
	require.Equal(t, 0, wait(t))
	require.Len(t, a.all, 3)
	require.Equal(t, []string{"user: one"}, talk(a.all[0]))
	require.Equal(t, []string{"user: one", "assistant: re: one", "user: endless", "assistant: for ever", "user: one"}, talk(a.all[2]))
}

func TestSIGTERMRestoresTerminal(t *testing.T) {
	// The terminal is in raw mode while a line is typed; SIGTERM must restore it.
	r := serve(t, &fake{})
	s := openScreen(t)
	before, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	require.NoError(t, err)
	wait := s.start(r, "chat")
	s.sees(t, `> `)
	r.signals <- syscall.SIGTERM
	require.Equal(t, 143, wait(t))
	after, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	require.NoError(t, err)
	require.Equal(t, before, after)
	s.sees(t, `(?s)\x1b\[\?2004h.*\x1b\[\?2004l`) // pastes are not marked any more
	s.types(t, "\n")                              // ends the read that is left behind
}

func TestLoadOnATerminalDrawsABarAWorker(t *testing.T) {
	for name, tc := range map[string]struct {
		end     error
		code    int
		columns uint16
	}{
		"a load that succeeds":                  {nil, 0, 100},
		"a load that fails":                     {refusal(9, "INVALID_MODEL_FILE", "bad file"), 5, 100},
		"a terminal that does not say its size": {nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var got *pb.LoadModelRequest
			r := serve(t, &fake{load: loader(&got, tc.end)})
			s := openScreenOf(t, tc.columns, tc.columns/3)
			require.Equal(t, tc.code, s.start(r, "load", "m")(t))
			s.sees(t, `w1 +(reading|uploading|ready) +\[`)
			if tc.code == 0 {
				s.sees(t, `w1 +ready +\[#+\]`)
				s.sees(t, `m loaded on w1: `)
			} else {
				s.sees(t, `millrace: bad file`)
			}
		})
	}
}

func TestWorkersOnATerminalIsRedrawn(t *testing.T) {
	seen := make(chan struct{})
	r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error {
		_ = s.Send(fleetOf(1))
		<-seen
		_ = s.Send(fleetOf(2))
		<-s.Context().Done()
		return s.Context().Err()
	}})
	s := openScreen(t)
	wait := s.start(r, "workers")
	s.sees(t, `w1 +degraded`)
	close(seen)
	s.sees(t, `(?s)\x1b\[9A\r.*w1 +degraded.*\x1b\[J`)
	s.sees(t, `\(not shown at this width: address, last step, device\)`)
	for _, line := range strings.Split(s.seen.String(), "\n") {
		require.LessOrEqual(t, len(strings.TrimSuffix(line, "\x1b[K\r")), 100+len("\x1b[8A\r\x1b[J\r"), "a line is cut at the screen's width")
	}
	r.signals <- syscall.SIGINT
	require.Equal(t, 0, wait(t))
}

func TestWorkersOnTerminalPrintsOnce(t *testing.T) {
	// --once and --json end the command on a terminal, which otherwise follows the fleet.
	for name, args := range map[string][]string{"by --once": {"workers", "--once"}, "as JSON": {"workers", "--json"}} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error {
				_ = s.Send(fleetOf(1))
				<-s.Context().Done()
				return s.Context().Err()
			}})
			s := openScreen(t)
			require.Equal(t, 0, s.start(r, args...)(t))
			s.sees(t, `there:2`)
			require.NotContains(t, s.seen.String(), "\x1b")
		})
	}
}

func TestGeneratedTextCannotSteerATerminal(t *testing.T) {
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got, "a\x1b[2J", "\x07b\n")})
	s := openScreen(t)
	require.Equal(t, 0, s.start(r, "generate", "Once")(t))
	s.sees(t, "a\ufffd\\[2J\ufffdb\r\n3? ?2 tokens")
	require.NotContains(t, s.seen.String(), "\x1b")
	require.NotContains(t, s.seen.String(), "\x07")
	// Elsewhere the text is the model's output, byte for byte.
	require.Equal(t, 0, r.run(t, "generate", "Once"))
	require.Equal(t, "a\x1b[2J\x07b\n", r.out.String())
}

func TestWithoutAPromptATerminalIsNotWaitedFor(t *testing.T) {
	r := serve(t, &fake{})
	s := openScreen(t)
	require.Equal(t, 2, s.start(r, "generate")(t))
	s.sees(t, `no prompt: give it as an argument or on standard input`)
}

func TestScoreOnATerminalCountsWindows(t *testing.T) {
	r := serve(t, &fake{tokenize: bytewise, generate: scorer(&[][]uint32{})})
	s := openScreen(t)
	require.Equal(t, 0, s.start(r, "score", "--window", "8", write(t, strings.Repeat("x", 80)))(t))
	s.sees(t, `windows 10 of 10 +\[#+\]`)
	s.sees(t, `perplexity \d`)
}

func TestStatisticsAreFaintOnATerminal(t *testing.T) {
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got, " upon")})
	r.colours = true
	s := openScreen(t)
	wait := s.start(r, "generate", "-m", "m", "Once")
	s.sees(t, ` upon\r\n\x1b\[2m1 token, .*w1\x1b\[0m`)
	require.Equal(t, 0, wait(t))
}

func TestPastedLinesAreOneMessage(t *testing.T) {
	var a answers
	r := serve(t, &fake{generate: a.generate})
	s := openScreen(t)
	wait := s.start(r, "chat")
	s.sees(t, `> `)
	s.types(t, "\x1b[200~one\rtwo\x1b[201~ and three\r")
	s.sees(t, `(?s)2 tokens.*> `)
	s.types(t, "\x04")
	require.Equal(t, 0, wait(t))
	require.Equal(t, []string{"user: one\ntwo and three"}, talk(a.all[0]))
}
