package cli_test

import (
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// answers replies "re: " and the last message, and keeps the requests.
type answers struct {
	mu  sync.Mutex
	all []*pb.GenerateRequest
}

func (a *answers) generate(in *pb.GenerateRequest, s generating) error {
	messages := in.GetChat().GetMessages()
	last := messages[len(messages)-1].GetContent()
	a.mu.Lock()
	a.all = append(a.all, in)
	a.mu.Unlock()
	if last == "fail" {
		return refusal(codes.Internal, "PANIC", "broken")
	}
	if err := s.Send(begun(in)); err != nil {
		return err
	}
	return say(s, 0, "re: ", last)
}

// talk lists the messages of a request's chat, as "role: content".
func talk(in *pb.GenerateRequest) []string {
	var all []string
	for _, m := range in.GetChat().GetMessages() {
		all = append(all, m.GetRole()+": "+m.GetContent())
	}
	return all
}

func TestAScriptedChatRemembersAndObeysCommands(t *testing.T) {
	var a answers
	r := serve(t, &fake{generate: a.generate})
	r.in = strings.NewReader(strings.Join([]string{
		"one", "", "two", "/seed 7", "/set temperature 0.5", "/set max-tokens 9", "three", "/reset", "/seed", "four", "/system be brief", "five", "/quit", "never",
	}, "\n"))
	require.Equal(t, 0, r.run(t, "chat", "-q", "--top-k", "3", "--system", "be kind"), r.err.String())
	require.Equal(t, "re: one\nre: two\nre: three\nre: four\nre: five\n", r.out.String())
	require.Empty(t, r.err.String())
	require.Len(t, a.all, 5)
	require.Equal(t, []string{"system: be kind", "user: one"}, talk(a.all[0]))
	require.Equal(t, []string{"system: be kind", "user: one", "assistant: re: one", "user: two"}, talk(a.all[1]))
	require.Len(t, talk(a.all[2]), 6)
	require.Equal(t, []string{"system: be kind", "user: four"}, talk(a.all[3]))
	require.Equal(t, []string{"system: be brief", "user: five"}, talk(a.all[4]))
	require.True(t, proto.Equal(&pb.Sampling{TopK: proto.Int32(3)}, a.all[1].GetSampling()))
	require.True(t, proto.Equal(&pb.Sampling{TopK: proto.Int32(3), Seed: proto.Uint64(7), Temperature: proto.Float32(0.5)}, a.all[2].GetSampling()))
	require.EqualValues(t, 9, a.all[2].GetStopping().GetMaxTokens())
	require.Nil(t, a.all[3].GetSampling().Seed)
}

func TestChatPrintsStatisticsApartFromAnswers(t *testing.T) {
	var a answers
	r := serve(t, &fake{generate: a.generate})
	r.in = strings.NewReader("one\n/help\n")
	require.Equal(t, 0, r.run(t, "chat"))
	require.Equal(t, "re: one\n", r.out.String())
	require.Regexp(t, `(?s)^\(2 tokens, .*/seed 42, .*w1\)\n/help .*/system TEXT`, r.err.String())
}

func TestTheFirstFailureEndsAScriptedChat(t *testing.T) {
	for name, tc := range map[string]struct {
		line string
		code int
		text string
	}{
		"an answer that fails":      {"fail", 1, "reason: PANIC"},
		"an unknown command":        {"/bogus", 2, "there is no command /bogus"},
		"an unknown knob":           {"/set bogus 1", 2, `no knob "bogus"`},
		"a knob of no use":          {"/set num-sequences 2", 2, "one answer at a time"},
		"a value of the wrong kind": {"/seed x", 2, "not a whole number"},
	} {
		t.Run(name, func(t *testing.T) {
			var a answers
			r := serve(t, &fake{generate: a.generate})
			r.in = strings.NewReader("one\n" + tc.line + "\nnever\n")
			require.Equal(t, tc.code, r.run(t, "chat", "-q"))
			require.Equal(t, "re: one\n", r.out.String())
			require.Contains(t, r.err.String(), tc.text)
		})
	}
}

func TestChatRefusesModelWithoutTemplate(t *testing.T) {
	// The refusal comes before the first prompt, so that no typed text is lost.
	plain := model("stories")
	plain.Capabilities.ChatTemplate = false
	r := serve(t, &fake{models: []*pb.ModelInfo{plain}})
	require.Equal(t, 5, r.run(t, "chat"))
	require.Equal(t, "millrace: model \"stories\" has no chat template: it continues texts and holds no conversation\n"+
		"  try: millrace generate -m stories --target "+r.target+" \"Once upon a time\"\n", r.err.String())
	require.Equal(t, 2, r.run(t, "chat", "--num-sequences", "2"))
}

func TestCtrlCEndsAScriptedChatEvenWhileItReads(t *testing.T) {
	var a answers
	r := serve(t, &fake{generate: a.generate})
	in, typed := io.Pipe()
	t.Cleanup(func() { _ = typed.Close() })
	var once sync.Once
	r.in = reading{in, func() { once.Do(func() { r.signals <- syscall.SIGINT }) }}
	require.Equal(t, 130, r.run(t, "chat"))
}

// reading reports each read before it begins.
type reading struct {
	io.Reader
	tell func()
}

func (r reading) Read(p []byte) (int, error) {
	r.tell()
	return r.Reader.Read(p)
}

func TestChatTakesMessagesOfSeveralLines(t *testing.T) {
	var a answers
	r := serve(t, &fake{generate: a.generate})
	r.in = strings.NewReader("\"\"\"\none\n  two\n\"\"\"\nthree\n")
	require.Equal(t, 0, r.run(t, "chat"), r.err.String())
	require.Equal(t, []string{"user: one\n  two"}, talk(a.all[0]))
	require.Len(t, a.all, 2)
}

func TestChatShowsItsSettings(t *testing.T) {
	var a answers
	r := serve(t, &fake{generate: a.generate})
	r.in = strings.NewReader("/set temperature 0.5\n/show\n/set temperature\n/show\n")
	require.Equal(t, 0, r.run(t, "chat"), r.err.String())
	require.Regexp(t, `(?s)^model m, 0 messages so far\ntemperature: ?0.5\nmodel m, 0 messages so far\n$`, r.err.String())
}

// A message between quotes is a message, also if it begins like a command.
func TestQuotedMessageIsNoCommand(t *testing.T) {
	var a answers
	r := serve(t, &fake{generate: a.generate})
	r.in = strings.NewReader("\"\"\"\n/system obey\n/usr/bin is a folder\n\"\"\"\n\"\"\"\n/reset\n\"\"\"\n")
	require.Equal(t, 0, r.run(t, "chat", "-q"), r.err.String())
	require.Len(t, a.all, 2)
	require.Equal(t, []string{"user: /system obey\n/usr/bin is a folder"}, talk(a.all[0]))
	require.Equal(t, "user: /reset", talk(a.all[1])[2])
}
