package replay_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/replay"
)

const header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

func request(at time.Duration, prompt, output int) replay.Request {
	return replay.Request{Arrival: at, Prompt: prompt, Output: output}
}

func TestReadTraceGivesOffsets(t *testing.T) {
	for name, tc := range map[string]struct {
		file  string
		limit int
		want  []replay.Request
	}{
		"azure": {header + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n", 0,
			[]replay.Request{request(0, 374, 44), request(4314579*time.Microsecond, 396, 109)}},
		"azure with zones, other columns and line ends": {"GeneratedTokens,x,TIMESTAMP,ContextTokens\r\n5,a,2024-05-10 23:59:59.500+00:00,7\r\n6,b,2024-05-11 00:00:01+00:00,8\r\n", 0,
			[]replay.Request{request(0, 7, 5), request(1500*time.Millisecond, 8, 6)}},
		"mooncake": {`{"timestamp": 3000, "input_length": 513, "output_length": 6, "hash_ids": [0, 7]}` + "\n" + `{"timestamp": 3027.5, "input_length": 1, "output_length": 2}`, 0,
			[]replay.Request{{Arrival: 0, Prompt: 513, Output: 6, Blocks: []uint64{0, 7}}, request(27500*time.Microsecond, 1, 2)}},
		"a limit":            {header + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:47,2,2\nnot read,at,all\n", 2, []replay.Request{request(0, 1, 1), request(time.Second, 2, 2)}},
		"out of order":       {header + "2023-11-16 18:15:47,2,2\n2023-11-16 18:15:46,1,1\n", 0, []replay.Request{request(0, 1, 1), request(time.Second, 2, 2)}},
		"lengths of nothing": {header + "2023-11-16 18:15:47,0,0\n", 0, []replay.Request{request(0, 1, 1)}},
		"empty lines":        {header + "\n2023-11-16 18:15:47,3,4\n\n", 0, []replay.Request{request(0, 3, 4)}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := replay.ReadTrace(strings.NewReader(tc.file), tc.limit)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestReadTraceNamesTheWrongLine(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"nothing":                  {"", "empty"},
		"only a header":            {header, "no requests"},
		"another table":            {"a,b,c\n1,2,3\n", "line 1: no column TIMESTAMP"},
		"too few fields":           {header + "2023-11-16 18:15:46,1\n", "line 2: 2 fields"},
		"no time":                  {header + "yesterday,1,2\n", "line 2: TIMESTAMP"},
		"no number":                {header + "2023-11-16 18:15:46,many,2\n", "line 2: ContextTokens"},
		"a negative length":        {header + "2023-11-16 18:15:46,1,-2\n", "line 2: 1 prompt and -2"},
		"an absurd length":         {header + "2023-11-16 18:15:46,99999999,2\n", "line 2"},
		"JSON cut off":             {`{"timestamp": 0,`, "line 1"},
		"JSON without times":       {`{"input_length": 3, "output_length": 4}`, "line 1: timestamp"},
		"blocks of another length": {`{"timestamp": 0, "input_length": 513, "output_length": 4, "hash_ids": [1]}`, "line 1: 1 hash_ids for input_length 513: want 2"},
		"a line without end":       {"{" + strings.Repeat("x", 2<<20), "token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := replay.ReadTrace(strings.NewReader(tc.file), 0)
			require.ErrorIs(t, err, replay.ErrFormat)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestFasterShortensTimesAlone(t *testing.T) {
	slow := []replay.Request{request(0, 1, 2), request(4*time.Second, 3, 4)}
	require.Equal(t, []replay.Request{request(0, 1, 2), request(time.Second, 3, 4)}, replay.Faster(slow, 4))
	require.Equal(t, 4*time.Second, slow[1].Arrival, "the trace itself stays")
}

func TestArrivalsAreCutToTheContext(t *testing.T) {
	for name, tc := range map[string]struct {
		size  load.Size
		limit int
		want  load.Size
	}{
		"fits":                {load.Size{Prompt: 10, Output: 20}, 30, load.Size{Prompt: 10, Output: 20}},
		"no limit":            {load.Size{Prompt: 1000, Output: 2000}, 0, load.Size{Prompt: 1000, Output: 2000}},
		"a long prompt":       {load.Size{Prompt: 1000, Output: 20}, 100, load.Size{Prompt: 80, Output: 20}},
		"a long output":       {load.Size{Prompt: 30, Output: 2000}, 100, load.Size{Prompt: 30, Output: 70}},
		"both":                {load.Size{Prompt: 1000, Output: 2000}, 100, load.Size{Prompt: 50, Output: 50}},
		"the smallest limits": {load.Size{Prompt: 1000, Output: 2000}, 2, load.Size{Prompt: 1, Output: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, load.Fit(tc.size, tc.limit))
			got := slices.Collect(replay.Arrivals([]replay.Request{{Arrival: 3, Prompt: tc.size.Prompt, Output: tc.size.Output}}, tc.limit))
			require.Equal(t, []load.Arrival{{At: 3, Size: tc.want}}, got)
			cut := replay.CountCut([]replay.Request{{Prompt: tc.size.Prompt, Output: tc.size.Output}}, tc.limit)
			require.Equal(t, tc.want != tc.size, cut == 1)
		})
	}
}

func TestReadPublishedTraces(t *testing.T) {
	dir := os.Getenv("MILLRACE_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "..", "shared")
	}
	for _, name := range []string{"AzureLLMInferenceTrace_conv.csv", "mooncake_synthetic_trace.jsonl"} {
		f, err := os.Open(filepath.Join(dir, "traces", name))
		if err != nil {
			t.Skipf("the published traces are not here (%v): set MILLRACE_SHARED to a folder whose traces/ has %s", err, name)
		}
		requests, err := replay.ReadTrace(f, 0)
		require.NoError(t, f.Close())
		require.NoError(t, err)
		require.Greater(t, len(requests), 1000)
		require.Zero(t, requests[0].Arrival)
		require.Greater(t, requests[len(requests)-1].Arrival, time.Minute)
	}
}
