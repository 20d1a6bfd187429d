package vectorcli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	"lukechampine.com/blake3"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
)

// sender sends a training's config, prologue and rows.
type sender struct {
	t        *training
	config   *pb.TrainingConfig // a copy, because the training's own gets the seed of `accepted`
	stream   pb.VectorService_TrainCodebookClient
	accepted chan struct{} // closed when rows may be sent
	err      error         // of send, after its end

	mu     sync.Mutex
	digest string // guarded by mu; of the rows, "" until all are known
}

func (s *sender) rowsDigest() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.digest
}

// send returns an error only if that must end the call; an error of the stream comes out of Recv.
func (s *sender) send(ctx context.Context) error {
	if !s.put(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: s.config}}) {
		return nil
	}
	if s.t.prologue != nil {
		for piece := make([]byte, maxPayload); ; piece = make([]byte, maxPayload) {
			n, err := io.ReadFull(s.t.prologue, piece)
			if n > 0 && !s.put(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Prologue{Prologue: piece[:n]}}) {
				return nil
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			if err != nil {
				return failure.Usagef("%w", err)
			}
		}
	}
	select {
	case <-s.accepted:
	case <-ctx.Done():
		return nil
	}
	return s.sendRows()
}

// sendRows sends the rows. It sends the last ones only if all rows together have the checkpoint's
// digest.
func (s *sender) sendRows() error {
	of, sum := s.t.rows, blake3.New(32, nil)
	each := max(1, maxPayload/of.RowBytes())
	for first := int64(0); first < of.Rows(); {
		piece := make([]byte, int(min(int64(each), of.Rows()-first))*of.RowBytes()) // a new one, because the stream may still hold the one before
		n, err := of.ReadRows(piece, first)
		if err != nil {
			return failure.Usagef("read rows from %d on: %w", first, err)
		}
		piece = piece[:n*of.RowBytes()]
		_, _ = sum.Write(piece) // never fails
		if first += int64(n); first == of.Rows() {
			if err := s.know(sum); err != nil {
				return err
			}
		}
		if !s.put(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Rows{Rows: piece}}) {
			return nil
		}
	}
	_ = s.stream.CloseSend() // never fails
	return nil
}

// know stores the rows' digest.
func (s *sender) know(sum hash.Hash) error {
	digest := hex.EncodeToString(sum.Sum(nil))
	if want := s.t.rowsDigest; want != "" && want != digest {
		return fmt.Errorf("%w: the rows have the digest %s, those of the checkpoint had %s: give the rows with which it began",
			failure.ErrUsage, digest, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.digest = digest
	return nil
}

// put returns false if the stream has ended.
func (s *sender) put(m *pb.TrainCodebookRequest) bool { return s.stream.Send(m) == nil }
