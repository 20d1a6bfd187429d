package vectors

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/rpc"
)

const (
	// codebookName is the codebook that every row replaces.
	codebookName = "millrace-bench"
	// pieceBytes bounds the rows or the codebook in one message, whose limit is 4 MiB.
	pieceBytes = 4<<20 - 4096
)

// served is a connection to a worker or scheduler.
type served struct {
	client pb.VectorServiceClient
	hangUp func()
	put    bool
}

// Served is the figures of calls.
type Served struct {
	Seconds          stats.Spread `json:"seconds"`
	VectorsPerSecond stats.Spread `json:"vectors_per_second"`
	OfDirect         float64      `json:"share_of_direct"` // the median rate over that of the device
}

func dial(ctx context.Context, cfg *Config) (*served, error) {
	conns, hangUp, err := load.Dial(cfg.Target, 1)
	if err != nil {
		return nil, err
	}
	s := &served{client: pb.NewVectorServiceClient(conns[0]), hangUp: hangUp}
	if _, err := s.client.ListCodebooks(ctx, &pb.ListCodebooksRequest{}, grpc.WaitForReady(true)); err != nil {
		hangUp()
		return nil, fmt.Errorf("target %s: %w", cfg.Target, err)
	}
	return s, nil
}

// unloadTimeout bounds the cleanup after a run.
const unloadTimeout = 10 * time.Second

func (s *served) close() error {
	defer s.hangUp()
	if !s.put {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), unloadTimeout)
	defer cancel()
	_, err := s.client.UnloadCodebook(ctx, &pb.UnloadCodebookRequest{Codebook: codebookName})
	return err
}

var (
	elements = map[engine.Element]pb.ElementType{
		engine.VectorF32: pb.ElementType_ELEMENT_TYPE_F32, engine.VectorF16: pb.ElementType_ELEMENT_TYPE_F16,
	}
	kinds = map[engine.CodebookKind]pb.CodebookKind{
		engine.Flat: pb.CodebookKind_CODEBOOK_KIND_FLAT, engine.Product: pb.CodebookKind_CODEBOOK_KIND_PRODUCT,
	}
)

// putCodebook uploads a codebook.
func (s *served) putCodebook(ctx context.Context, d engine.CodebookDesc, codewords []byte) error {
	stream, err := s.client.PutCodebook(ctx)
	if err != nil {
		return err
	}
	header := &pb.PutCodebookHeader{Codebook: codebookName, Replace: proto.Bool(true), Shape: &pb.CodebookShape{
		Kind: kinds[d.Kind], Metric: pb.VectorMetric_VECTOR_METRIC_L2, Dimension: uint32(d.Dimension), Codewords: uint32(d.Codewords),
		Subspaces: uint32(d.Subspaces), CodewordType: elements[d.Type],
	}}
	err = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: header}})
	for offset := 0; err == nil && offset < len(codewords); offset += pieceBytes {
		chunk := codewords[offset:min(offset+pieceBytes, len(codewords))]
		err = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Chunk{Chunk: chunk}})
	}
	if err != nil && !errors.Is(err, io.EOF) { // after io.EOF, CloseAndRecv returns the reason
		return err
	}
	if _, err = stream.CloseAndRecv(); err == nil {
		s.put = true
	}
	return err
}

// servedEncode encodes the same rows by concurrent calls and compares the codes.
func (r *run) servedEncode(j *job, line *Line, codewords, rows, want []byte) (*Served, error) {
	if err := r.served.putCodebook(r.ctx, j.desc, codewords); err != nil {
		return nil, fmt.Errorf("put the codebook: %w", err)
	}
	row, code := j.desc.Dimension*j.element.Size(), j.desc.Subspaces*j.desc.CodeSize()
	each := max(1, pieceBytes/max(row, code))
	got := make([]byte, len(want))
	return r.called(line, func() error {
		group, ctx := errgroup.WithContext(r.ctx)
		group.SetLimit(r.cfg.InFlight)
		for first := 0; first < j.rows; first += each {
			end := min(first+each, j.rows)
			group.Go(func() error {
				out, err := r.served.client.Encode(ctx, &pb.EncodeRequest{
					Codebook: codebookName, ElementType: elements[j.element], Rows: rows[first*row : end*row],
				}, rpc.WithZeroCopyRequest())
				copy(got[first*code:end*code], out.GetCodes())
				return err
			})
		}
		return group.Wait()
	}, func() bool { return bytes.Equal(got, want) })
}

// called measures calls as paired measures the device. same compares the bytes after each time.
func (r *run) called(line *Line, once func() error, same func() bool) (*Served, error) {
	var seconds, rates []float64
	warm := false
	for first := time.Now(); len(seconds) == 0 || len(seconds) < r.cfg.Repeat && time.Since(first) < r.cfg.Budget; {
		r.progress("%s by calls: %d of %d", line.Row, len(seconds)+1, r.cfg.Repeat)
		begin := time.Now()
		if err := once(); err != nil {
			return nil, err
		}
		took := secondsOf(time.Since(begin))
		if !same() {
			return nil, fmt.Errorf("%w: calls gave other bytes than the device", ErrWrong)
		}
		if warm || time.Since(first) >= r.cfg.Budget {
			seconds, rates = append(seconds, took), append(rates, float64(line.Rows*max(line.Rounds, 1))/took)
		}
		warm = true
	}
	out := &Served{Seconds: stats.SpreadOf(seconds), VectorsPerSecond: stats.SpreadOf(rates)}
	out.OfDirect = share(out.VectorsPerSecond.Median, line.VectorsPerSecond.Median)
	return out, nil
}

// servedTrain trains by a call and compares the codebook.
func (r *run) servedTrain(j *job, line *Line, rows, want []byte) (*Served, error) {
	var got []byte
	return r.called(line, func() (err error) {
		got, err = r.served.train(r.ctx, j.train, rows)
		return err
	}, func() bool { return bytes.Equal(got, want) })
}

// train sends the rows and receives the codebook.
func (s *served) train(ctx context.Context, cfg engine.TrainerConfig, rows []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.TrainCodebook(ctx)
	if err != nil {
		return nil, err
	}
	send := func(m *pb.TrainCodebookRequest) bool { return stream.Send(m) == nil } // Recv returns the reason of a failure
	send(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: trainingConfig(cfg)}})
	var sending errgroup.Group
	defer func() {
		cancel()
		_ = sending.Wait() // it returns no error
	}()
	var codewords []byte
	for {
		event, err := stream.Recv()
		switch {
		case err != nil:
			return nil, fmt.Errorf("train: %w", err)
		case event.GetAccepted() != nil:
			each := max(1, pieceBytes/(cfg.Codebook.Dimension*cfg.Element.Size())) * cfg.Codebook.Dimension * cfg.Element.Size()
			sending.Go(func() error {
				for offset := 0; offset < len(rows); offset += each {
					if !send(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Rows{Rows: rows[offset:min(offset+each, len(rows))]}}) {
						return nil
					}
				}
				return stream.CloseSend()
			})
		case event.GetFinished() != nil:
			return codewords, nil
		default:
			codewords = append(codewords, event.GetCodebook()...)
		}
	}
}

// trainingConfig converts a configuration to the protocol.
func trainingConfig(c engine.TrainerConfig) *pb.TrainingConfig {
	out := &pb.TrainingConfig{
		Dimension: uint32(c.Codebook.Dimension), Rows: c.Rows, ElementType: elements[c.Element], Kind: kinds[c.Codebook.Kind],
		Codewords: uint32(c.Codebook.Codewords), CodewordType: elements[c.Codebook.Type], Metric: pb.VectorMetric_VECTOR_METRIC_L2,
		Algorithm: pb.TrainingAlgorithm_TRAINING_ALGORITHM_LLOYD, Init: pb.CodebookInit_CODEBOOK_INIT_RANDOM, Seed: &c.Seed,
		MaxIterations: proto.Uint32(uint32(c.MaxIterations)), StableIterations: proto.Uint32(uint32(c.StableRounds)),
	}
	if c.Algorithm == engine.Lloyd {
		return out
	}
	a := c.Annealing
	out.Algorithm, out.Init = pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED, pb.CodebookInit_CODEBOOK_INIT_FARTHEST
	out.Annealing = &pb.Annealing{
		Temperature: &a.Temperature, CoolingRate: &a.CoolingRate, LearningRate: &a.LearningRate, Trim: &a.Trim,
		MaintenanceInterval: proto.Uint32(uint32(a.MaintenanceInterval)), MergeDistance: &a.MergeDistance, SplitLoad: &a.SplitLoad,
	}
	return out
}
