package route_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// vectors plays the commands of vectors, and gives their outcome with the line that it is in:
//
//	has ID [book=NAME:DIGEST:ready|disk|unusable|failed]... [trains=MAX] [device=BYTES] [spool=BYTES]    of a worker that is there
//	trainings ID [running=N]                            a report
//	encode NAME [digest=D] [bytes=N] [exclude=ID]... [tie=N] [other=N]
//	encoded ID [bytes=N]
//	train _ [rows=BYTES] [rest=BYTES] [exclude=ID]... [tie=N] [other=N]
//	trained ID
func (p *player) vectors(words []string, o map[string][]string) string {
	p.Helper()
	tie := uint64(p.number(o, "tie")) | uint64(p.number(o, "other"))<<32
	s := route.NewSnapshot(p.s.Known, p.s.Workers)
	switch words[0] {
	case "has":
		v := &route.Vectors{MaxTrainings: p.number(o, "trains"), FreeDevice: uint64(p.number(o, "device")), FreeSpool: uint64(p.number(o, "spool"))}
		states := map[string]route.CodebookState{"ready": route.CodebookReady, "disk": route.CodebookOnDisk,
			"unusable": route.CodebookUnusable, "failed": route.CodebookFailed}
		for _, b := range o["book"] {
			parts := fields(b)
			state, known := states[parts[2]]
			require.True(p, known, b)
			v.Codebooks = append(v.Codebooks, route.Codebook{Name: parts[0], Digest: parts[1], State: state})
		}
		p.find(words[1]).Vectors = v
	case "trainings":
		p.find(words[1]).Load.Vectors.Reported(p.number(o, "running"))
	case "encode":
		i, err := route.PickCodebook(&s, route.CodebookRequest{Codebook: words[1], Digest: one(o, "digest"), Exclude: o["exclude"], Tie: tie})
		if err != nil {
			return p.refused(err)
		}
		load := &s.Workers[i].Load.Vectors
		load.Begin(p.number(o, "bytes"))
		return fmt.Sprintf("-> %s has %d calls of %d bytes\n", s.Workers[i].ID, load.Calls(), load.Bytes())
	case "encoded":
		p.find(words[1]).Load.Vectors.End(p.number(o, "bytes"))
	case "train":
		i, err := route.PickTraining(&s, route.TrainingRequest{Rows: uint64(p.number(o, "rows")), Rest: uint64(p.number(o, "rest")),
			Exclude: o["exclude"], Tie: tie})
		if err != nil {
			return p.refused(err)
		}
		w := &s.Workers[i]
		require.True(p, w.Load.Vectors.Train(w.Vectors.MaxTrainings))
		return fmt.Sprintf("-> %s has %d trainings\n", w.ID, w.Load.Vectors.Trainings())
	case "trained":
		p.find(words[1]).Load.Vectors.Trained()
	default:
		require.FailNow(p, "unknown command", words)
	}
	return ""
}

func (p *player) refused(err error) string {
	p.Helper()
	var refusal *route.Refusal
	require.ErrorAs(p, err, &refusal)
	require.ErrorIs(p, err, refusal.Err)
	if refusal.Loadable {
		later := ""
		if refusal.Returns {
			later = ", later"
		}
		return fmt.Sprintf("-> %v (a load would help%s)\n", err, strings.TrimRight(" "+refusal.Digest, " ")+later)
	}
	return fmt.Sprintf("-> %v\n", err)
}

// fields are three, of a:b:c.
func fields(text string) (out [3]string) {
	at := 0
	for _, c := range text {
		if c == ':' && at < 2 {
			at++
			continue
		}
		out[at] += string(c)
	}
	return out
}

func TestTrainingsThatBeginAtOnceNeverPassTheBoundOfAWorker(t *testing.T) {
	const most, asked = 3, 50
	var load route.VectorLoad
	var wait sync.WaitGroup
	taken := make(chan bool, asked)
	for range asked {
		wait.Go(func() { taken <- load.Train(most) })
	}
	wait.Wait()
	count := 0
	for range asked {
		if <-taken {
			count++
		}
	}
	require.Equal(t, most, count)
	load.Reported(most)
	require.EqualValues(t, most, load.Trainings(), "what is our own is not of others too")
	for range most {
		load.Trained()
	}
	require.True(t, load.Train(most))
}

func TestAPieceIsSpreadOverTheCopiesByItsBytes(t *testing.T) {
	s := route.Snapshot{Known: true}
	for _, id := range []string{"a", "b", "c"} {
		s.Workers = append(s.Workers, route.Worker{ID: id, Connected: true, State: route.Ready, Load: &route.Load{},
			Vectors: &route.Vectors{Codebooks: []route.Codebook{{Name: "k", Digest: "d", State: route.CodebookReady}}}})
	}
	s = route.NewSnapshot(true, s.Workers)
	const piece = 4 << 20
	for n := range uint64(30) {
		i, err := route.PickCodebook(&s, route.CodebookRequest{Codebook: "k", Tie: n * 0x9e3779b97f4a7c15})
		require.NoError(t, err)
		s.Workers[i].Load.Vectors.Begin(piece)
		require.False(t, s.Workers[i].Load.Idle())
	}
	for i := range s.Workers {
		require.EqualValues(t, 10*piece, s.Workers[i].Load.Vectors.Bytes(), s.Workers[i].ID)
	}
	var refusal *route.Refusal
	_, err := route.PickCodebook(&s, route.CodebookRequest{Codebook: "k", Exclude: []string{"a", "b", "c"}})
	require.ErrorAs(t, err, &refusal)
	require.ErrorIs(t, err, route.ErrNoWorker)
}
