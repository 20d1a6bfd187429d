package relaybench

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func promptsConfig() PromptsConfig {
	return PromptsConfig{
		Programs: Programs{Connections: 1}, Kinds: []string{kindIDs}, Bytes: 220_000, Callers: 150, Workers: 15, FirstToken: time.Second,
		Rounds: 5, Duration: 15 * time.Second,
	}
}

func TestPromptsThatCannotBeMeasuredAreRefused(t *testing.T) {
	ok := promptsConfig()
	require.NoError(t, ok.Validate())
	for name, tc := range map[string]struct {
		change func(*PromptsConfig)
		want   string
	}{
		"no bytes":                    {func(c *PromptsConfig) { c.Bytes = 0 }, "--bytes 0"},
		"more than one step computes": {func(c *PromptsConfig) { c.Bytes = maxPromptBytes + 1 }, "--bytes 262145"},
		"no callers":                  {func(c *PromptsConfig) { c.Callers = 0 }, "--callers 0"},
		"no workers":                  {func(c *PromptsConfig) { c.Workers = 0 }, "--workers 0"},
		"a worker without a caller":   {func(c *PromptsConfig) { c.Workers = 151 }, "--workers 151"},
		"no rounds":                   {func(c *PromptsConfig) { c.Rounds = 0 }, "--rounds 0"},
		"no kind":                     {func(c *PromptsConfig) { c.Kinds = nil }, "--kinds names none"},
		"an unknown kind":             {func(c *PromptsConfig) { c.Kinds = []string{"chat"} }, `--kinds "chat"`},
		"text for no tokenizer":       {func(c *PromptsConfig) { c.Kinds = []string{kindIDs, kindText} }, "--model"},
		"no time to the first token":  {func(c *PromptsConfig) { c.FirstToken = 0 }, "--first-token 0s"},
		"too short a turn":            {func(c *PromptsConfig) { c.Duration = 2 * time.Second }, "--duration 2s"},
		"no connection":               {func(c *PromptsConfig) { c.Connections = 0 }, "--connections 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := promptsConfig()
			tc.change(&c)
			require.ErrorContains(t, c.Validate(), tc.want)
		})
	}
}

func TestEveryCallerHasAPlaceAndTheTimeOfAPrompt(t *testing.T) {
	c := promptsConfig()
	r := c.rig()
	require.Equal(t, 15, r.workers)
	require.Equal(t, 10, r.models)
	require.Equal(t, 150, r.callers)
	require.EqualValues(t, 1, r.sequences)
	require.GreaterOrEqual(t, r.context, uint32(55_001))
	require.Equal(t, "sim:step=0s,prefill=18.181µs,decode=0s", r.device)
	c.Bytes = 1
	require.Equal(t, 1, c.ids(), "a prompt is never empty")
	for _, workers := range []int{1, 7, 15, 149, 150} {
		c.Workers = workers
		asked := map[string]int{}
		for i := range c.Callers {
			require.Less(t, i/c.models(), workers, "a caller has a worker to send to alone")
			asked[c.modelOf(i)]++
			require.LessOrEqual(t, asked[c.modelOf(i)], workers, "as many places as there are")
		}
	}
}

func TestPromptsAreAsLargeAsTheyShallBeAndAllDifferent(t *testing.T) {
	m := &measurement{maker: load.Maker{Vocabulary: 32000, IDsOnly: true}}
	for _, bytes := range []int{220_000, 300, 64, 1} {
		c := promptsConfig()
		c.Bytes = bytes
		made := func(kind string, stream uint64) (all []*pb.GenerateRequest) {
			p, err := m.prompter(&c, "bench-2", kind, stream)
			require.NoError(t, err)
			for range 2 {
				in := &pb.GenerateRequest{}
				require.NoError(t, proto.Unmarshal(p.next().Data.Materialize(), in))
				require.Empty(t, in.ProtoReflect().GetUnknown())
				require.Equal(t, "bench-2", in.GetModel())
				require.EqualValues(t, 1, in.GetStopping().GetMaxTokens())
				require.True(t, in.GetResponse().GetTokenIdsOnly())
				all = append(all, in)
			}
			return all
		}
		ids, texts := append(made(kindIDs, 0), made(kindIDs, 1)...), append(made(kindText, 0), made(kindText, 1)...)
		for i := range ids {
			require.Len(t, ids[i].GetTokenIds().GetIds(), c.ids())
			require.Len(t, texts[i].GetPrompt(), bytes)
			for j := range i {
				if bytes > 64 {
					require.NotEqual(t, ids[i].GetTokenIds().GetIds()[:16], ids[j].GetTokenIds().GetIds()[:16])
					require.NotEqual(t, texts[i].GetPrompt()[:256], texts[j].GetPrompt()[:256])
				}
			}
		}
	}
}

// took is a histogram of one duration.
func took(ms int) (h stats.Histogram) {
	h.AddN(time.Duration(ms)*time.Millisecond, 100)
	return h
}

func TestWhatIsAddedIsTheMedianOfTheDifferencesWithinRounds(t *testing.T) {
	r := &PromptsReport{Bytes: 220_000, Callers: 150, FirstToken: 1000, Kinds: []PromptKind{sumPrompts(kindIDs, []promptRound{
		{direct: took(1000), through: took(1001), cpu: 200 * time.Millisecond},
		{direct: took(1500), through: took(1530), cpu: 300 * time.Millisecond}, // others used the machine
		{direct: took(1000), through: took(1003), cpu: 100 * time.Millisecond},
	})}}
	for metric, want := range map[string]float64{"added_p50_ms": 3, "added_p99_ms": 3, "cpu_ms": 2} {
		got, ok := r.Figure(kindIDs, metric)
		require.True(t, ok, metric)
		require.InDelta(t, want, got, 0.02, metric)
	}
	_, ok := r.Figure(kindText, "added_p50_ms")
	require.False(t, ok)
	var text bytes.Buffer
	r.Print(&text)
	require.Contains(t, text.String(), "ids, added p50: 3.00 ms, bar < 2: MISSED")
	require.Contains(t, text.String(), "ids, added p99: 3.00 ms, bar < 20: held")
}

// runPrompts is a small run over fake programs.
func runPrompts(t *testing.T, lose string) (*PromptsReport, error) {
	t.Helper()
	rpctest.NoLeaks(t)
	t.Setenv(fakeKey, lose)
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv("TMPDIR", t.TempDir())
	c := promptsConfig()
	c.Scheduler, c.Worker, c.Bytes, c.Callers, c.Workers, c.Rounds = self, self, 64, 3, 2, 2
	c.FirstToken, c.Duration = 5*time.Millisecond, 100*time.Millisecond
	return Prompts(t.Context(), c, func(string, ...any) {})
}

func TestCallersGoToTheWorkersAndThroughTheScheduler(t *testing.T) {
	report, err := runPrompts(t, "0")
	require.NoError(t, err)
	require.Len(t, report.Kinds, 1)
	require.Positive(t, report.Kinds[0].Calls)
	require.Positive(t, report.Kinds[0].DirectP50.Min)
	require.Positive(t, report.Kinds[0].ThroughP50.Min)
}

func TestACallWithoutItsTokenFailsTheRun(t *testing.T) {
	report, err := runPrompts(t, "all")
	require.ErrorIs(t, err, ErrFailed)
	require.Nil(t, report)
}
