package vectorcli

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
)

// errReply: a server's message violates the contract.
var errReply = errors.New("the server broke the contract")

// The texts of files about a training, besides the config's fields.
const (
	rowsDigestText  = "rows_digest"  // BLAKE3 of all rows sent, 64 hex digits
	givenDigestText = "given_digest" // digest of the codebook that it began with
)

// rowSource is a matrix of rows in a file or in memory.
type rowSource interface {
	Rows() int64
	RowBytes() int
	// ReadRows reads as many rows as fit into dst, from row first on.
	ReadRows(dst []byte, first int64) (int, error)
}

// training is one call of TrainCodebook.
type training struct {
	config   *pb.TrainingConfig
	rows     rowSource
	prologue io.Reader // given codewords or a checkpoint's state; nil for none
	energies []float64 // of the past rounds
	// rowsDigest is the digest that the rows must have, from a checkpoint; "" is any. run sets it
	// to the digest of the rows that were sent.
	rowsDigest  string
	givenDigest string
	closers     []func() error

	// event gets every message; an error cancels the call. checkpoint gets complete checkpoints.
	// Both may be nil.
	event      func(*pb.TrainCodebookResponse) error
	checkpoint func(*checkpoint) error

	worker    string
	accepted  *pb.TrainingAccepted // nil before `accepted`
	state     []byte               // of the checkpoint that is incomplete
	codewords []byte
	loads     []int64   // rows of each codeword, if return_statistics asks for them
	variances []float64 // likewise
	missed    bool      // a round is missing: energies are incomplete
	unsaved   error     // why the worker did not save the codebook under its name; nil if it did
}

func (t *training) close() {
	for _, one := range t.closers {
		_ = one() // it was only read
	}
}

// run sends everything and receives until the end.
func (t *training) run(ctx context.Context, client pb.VectorServiceClient) (*trained, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.TrainCodebook(ctx)
	if err != nil {
		cancel()
		return nil, failure.OfCall(err, t.config.GetSaveAs(), nil)
	}
	s := &sender{t: t, config: proto.CloneOf(t.config), stream: stream, accepted: make(chan struct{})}
	var sending sync.WaitGroup
	sending.Go(func() {
		if s.err = s.send(ctx); s.err != nil {
			cancel()
		}
	})
	finished, err := t.receive(stream, s)
	cancel()
	sending.Wait()
	switch {
	case s.err != nil && ctx.Err() != nil && !errors.Is(s.err, context.Canceled):
		return nil, s.err // it ended the call
	case err != nil:
		return nil, err
	}
	t.rowsDigest = s.rowsDigest()
	return t.end(finished)
}

// resumeFrom makes the next run resume from a checkpoint of this training.
func (t *training) resumeFrom(c *checkpoint) {
	t.config.ResumeBytes = proto.Uint64(uint64(len(c.state)))
	t.prologue, t.energies, t.rowsDigest = bytes.NewReader(c.state), slices.Clone(c.energies), c.training[rowsDigestText]
	t.accepted, t.state, t.codewords, t.loads, t.variances = nil, nil, nil, nil, nil
}

// receive receives messages until the last one.
func (t *training) receive(stream pb.VectorService_TrainCodebookClient, s *sender) (*pb.TrainingFinished, error) {
	for {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%w: it ended the training without an end", errReply)
		case err != nil:
			return nil, failure.OfCall(err, t.config.GetSaveAs(), stream.Trailer())
		}
		if event.GetWorkerId() != "" {
			t.worker = event.GetWorkerId()
		}
		switch e := event.GetEvent().(type) {
		case *pb.TrainCodebookResponse_Accepted:
			if t.accepted != nil {
				return nil, fmt.Errorf("%w: it accepted the training twice", errReply)
			}
			t.accepted = e.Accepted
			t.config.Seed = proto.Uint64(e.Accepted.GetSeed())
			close(s.accepted)
		case *pb.TrainCodebookResponse_Progress:
			t.round(e.Progress)
		case *pb.TrainCodebookResponse_Checkpoint:
			if err := t.piece(e.Checkpoint, s); err != nil {
				return nil, err
			}
		case *pb.TrainCodebookResponse_Codebook:
			if len(t.codewords)+len(e.Codebook) > t.size() {
				return nil, fmt.Errorf("%w: it sent more than the %d bytes of the codebook", errReply, t.size())
			}
			t.codewords = append(t.codewords, e.Codebook...)
		case *pb.TrainCodebookResponse_Statistics:
			if err := t.statistics(e.Statistics); err != nil {
				return nil, err
			}
		}
		if t.event != nil {
			if err := t.event(event); err != nil {
				return nil, err
			}
		}
		if event.GetFinished() != nil {
			return event.GetFinished(), t.saved(stream)
		}
	}
}

// saved receives the status after the last message, which has the reason if the worker could not
// save the codebook.
func (t *training) saved(stream pb.VectorService_TrainCodebookClient) error {
	if t.config.SaveAs == nil {
		return nil // no status matters
	}
	switch _, err := stream.Recv(); {
	case err == nil:
		return fmt.Errorf("%w: it sent more after the end of the training", errReply)
	case !errors.Is(err, io.EOF):
		t.unsaved = failure.OfCall(err, t.config.GetSaveAs(), stream.Trailer())
	}
	return nil
}

// size returns the bytes of the codebook.
func (t *training) size() int {
	each := 2
	if t.config.GetCodewordType() == pb.ElementType_ELEMENT_TYPE_F32 {
		each = 4
	}
	return int(t.config.GetCodewords()) * int(t.config.GetDimension()) * each
}

// mostStatistics bounds the codewords, of all subspaces, whose statistics a server sends.
const mostStatistics = 1 << 22

// askForStatistics requests the rows and the variance of each codeword, unless there are more than
// the server sends.
func (t *training) askForStatistics() {
	if codewordsOf(t.config) <= mostStatistics {
		t.config.ReturnStatistics = proto.Bool(true)
	}
}

// codewordsOf returns the codewords of all subspaces.
func codewordsOf(cfg *pb.TrainingConfig) uint64 {
	return uint64(cfg.GetCodewords()) * uint64(max(1, cfg.GetSubspaces()))
}

// statistics stores the statistics of some codewords.
func (t *training) statistics(s *pb.CodewordStatistics) error {
	n := len(s.GetRows()) / 8
	if len(s.GetRows()) != 8*n || len(s.GetVariances()) != 8*n || s.GetFirst() != uint64(len(t.loads)) || uint64(len(t.loads)+n) > codewordsOf(t.config) {
		return fmt.Errorf("%w: statistics of codewords from %d on, in %d and %d bytes, where %d of %d codewords have come", errReply,
			s.GetFirst(), len(s.GetRows()), len(s.GetVariances()), len(t.loads), codewordsOf(t.config))
	}
	for i := range n {
		t.loads = append(t.loads, int64(binary.LittleEndian.Uint64(s.GetRows()[8*i:])))
		t.variances = append(t.variances, math.Float64frombits(binary.LittleEndian.Uint64(s.GetVariances()[8*i:])))
	}
	return nil
}

// round stores a round's energy.
func (t *training) round(p *pb.TrainingProgress) {
	if p.Iteration == nil || p.Energy == nil {
		return
	}
	switch i, n := p.GetIteration(), uint64(len(t.energies)); {
	case i == n:
		t.energies = append(t.energies, p.GetEnergy())
	case i > n:
		t.missed = true
	case i+1 == n: // repeated
		t.energies[i] = p.GetEnergy()
	}
}

// piece stores a piece of a checkpoint and passes a complete checkpoint on.
func (t *training) piece(c *pb.TrainingCheckpoint, s *sender) error {
	if c.GetOffset() == 0 {
		t.state = nil
	}
	// Codewords of two rounds, places and velocities, and a header.
	most := 2*uint64(t.size()) + 16*uint64(t.config.GetCodewords())*uint64(t.config.GetDimension()) + 1<<10
	if c.GetOffset() != uint64(len(t.state)) || c.GetTotal() > most || uint64(len(t.state)+len(c.GetChunk())) > c.GetTotal() {
		return fmt.Errorf("%w: a checkpoint's piece of %d bytes at %d of %d, where %d is next and %d at most",
			errReply, len(c.GetChunk()), c.GetOffset(), c.GetTotal(), len(t.state), most)
	}
	t.state = append(t.state, c.GetChunk()...)
	if uint64(len(t.state)) < c.GetTotal() || t.checkpoint == nil {
		return nil
	}
	whole := &checkpoint{iteration: int64(c.GetIteration()), state: t.state, training: t.texts(s.rowsDigest())}
	t.state = nil
	if !t.missed && c.GetIteration() <= uint64(len(t.energies)) {
		whole.energies = t.energies[:c.GetIteration()]
	}
	return t.checkpoint(whole)
}

// texts describes the training for a file.
func (t *training) texts(rowsDigest string) map[string]string {
	out := recorded(t.config)
	out[rowsDigestText] = rowsDigest
	if t.givenDigest != "" {
		out[givenDigestText] = t.givenDigest
	}
	return out
}
