package vectorcli_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/safetensors"
	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// vectorServer is a worker over the reference. Its hooks may change its behaviour.
type vectorServer struct {
	pb.UnimplementedVectorServiceServer
	worker string
	// round is called after each round, reply before each message; their errors end the training.
	round   func(ctx context.Context, r engine.Round) error
	reply   func(*pb.TrainCodebookResponse) error
	encode  func(*pb.EncodeRequest) error // before each piece
	decode  func(*pb.DecodeRequest) error
	every   int64  // sends a checkpoint each time after this number of rounds, asked or not
	draws   uint64 // added to the seed: a worker that draws other rows
	unsaved error  // the end of a training whose codebook cannot be saved

	mu      sync.Mutex
	books   map[string]*book
	configs []*pb.TrainingConfig // of all trainings
	pieces  [][]int              // bytes of the messages of rows of each training
	puts    int
}

type book struct {
	info  *pb.CodebookInfo
	codes *vq.Codebook
}

// serveVectors starts the server over loopback.
func serveVectors(t *testing.T, v *vectorServer) *rig {
	t.Helper()
	rpctest.NoLeaks(t)
	if v.books == nil {
		v.books = map[string]*book{}
	}
	if v.worker == "" {
		v.worker = "w1"
	}
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, rpctest.Logger(t))
	pb.RegisterVectorServiceServer(server, v)
	lis, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	rpctest.Serve(t, server, lis)
	return &rig{target: lis.Addr().String(), signals: make(chan os.Signal, 4)}
}

func invalid(err error) error { return refusal(codes.InvalidArgument, "INVALID_ARGUMENT", err.Error()) }

// engineType returns the engine's number of an element type.
func engineType(e pb.ElementType) engine.Element { return engine.Element(e) - 1 }

// engineConfig applies the contract's defaults.
func engineConfig(cfg *pb.TrainingConfig) engine.TrainerConfig {
	or := func(set bool, value, unless float64) float64 {
		if set {
			return value
		}
		return unless
	}
	a := cfg.GetAnnealing()
	c := engine.TrainerConfig{
		Codebook: engine.CodebookDesc{
			Kind: engine.CodebookKind(cfg.GetKind()) - 1, Metric: engine.Metric(max(1, cfg.GetMetric())) - 1, Dimension: int(cfg.GetDimension()),
			Codewords: int(cfg.GetCodewords()), Subspaces: max(1, int(cfg.GetSubspaces())), Type: engine.VectorF16,
		},
		Rows: cfg.GetRows(), Element: engineType(cfg.GetElementType()), Algorithm: engine.Algorithm(max(1, cfg.GetAlgorithm())) - 1,
		Init: engine.Init(max(2, cfg.GetInit())) - 1, Seed: 4711, MaxIterations: 25, EnergyTolerance: or(cfg.EnergyTolerance != nil, cfg.GetEnergyTolerance(), -1),
		MinChanges: int64(or(cfg.MinChanges != nil, float64(cfg.GetMinChanges()), -1)), StableRounds: int(max(1, cfg.GetStableIterations())),
		Annealing: engine.Annealing{
			Temperature: or(a != nil && a.Temperature != nil, a.GetTemperature(), 1), CoolingRate: or(a != nil && a.CoolingRate != nil, a.GetCoolingRate(), 0.05),
			LearningRate: or(a != nil && a.LearningRate != nil, a.GetLearningRate(), 0.5), Momentum: a.GetMomentum(), Trim: a.GetTrim(),
			StepLimit: a.GetStepLimit(), MaintenanceInterval: int(a.GetMaintenanceInterval()), MergeDistance: a.GetMergeDistance(), SplitLoad: a.GetSplitLoad(),
		},
	}
	if cfg.GetInit() == pb.CodebookInit_CODEBOOK_INIT_RANDOM || cfg.GetInit() == 0 && c.Codebook.Metric == engine.InnerProduct {
		c.Init = engine.Random
	}
	if cfg.GetCodewordType() != 0 {
		c.Codebook.Type = engineType(cfg.GetCodewordType())
	}
	if cfg.Seed != nil {
		c.Seed = cfg.GetSeed()
	}
	if cfg.MaxIterations != nil {
		c.MaxIterations = int(cfg.GetMaxIterations())
	}
	if most := cfg.GetMaxRowsPerCodeword() * uint64(cfg.GetCodewords()); cfg.MaxRowsPerCodeword != nil {
		c.Rows = min(c.Rows, most)
	}
	return c
}

// shape converts an engine's shape.
func shape(d engine.CodebookDesc) *pb.CodebookShape {
	return &pb.CodebookShape{
		Kind: pb.CodebookKind(d.Kind + 1), Metric: pb.VectorMetric(d.Metric + 1), Dimension: uint32(d.Dimension), Codewords: uint32(d.Codewords),
		Subspaces: uint32(d.Subspaces), CodewordType: pb.ElementType(d.Type + 1),
	}
}

func desc(s *pb.CodebookShape) engine.CodebookDesc {
	return engine.CodebookDesc{
		Kind: engine.CodebookKind(s.GetKind()) - 1, Metric: engine.Metric(s.GetMetric()) - 1, Dimension: int(s.GetDimension()),
		Codewords: int(s.GetCodewords()), Subspaces: int(s.GetSubspaces()), Type: engineType(s.GetCodewordType()),
	}
}

// digest returns the public digest.
func digest(d engine.CodebookDesc, codewords []byte) string {
	c := codebookfile.Codebook{
		Kind:   []string{codebookfile.Flat, codebookfile.Product}[d.Kind],
		Metric: []string{codebookfile.L2, codebookfile.InnerProduct, codebookfile.Cosine}[d.Metric], Dimension: d.Dimension, Codewords: d.Codewords,
		Subspaces: d.Subspaces, CodewordType: []safetensors.Type{safetensors.F32, safetensors.F16, safetensors.BF16}[d.Type],
		Digest: blake3.Sum256(codewords),
	}
	sum := c.PublicDigest()
	return hex.EncodeToString(sum[:])
}

func (v *vectorServer) TrainCodebook(s grpc.BidiStreamingServer[pb.TrainCodebookRequest, pb.TrainCodebookResponse]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	cfg := first.GetConfig()
	v.mu.Lock()
	v.configs, v.pieces = append(v.configs, proto.CloneOf(cfg)), append(v.pieces, nil)
	call := len(v.pieces) - 1
	v.mu.Unlock()
	c := engineConfig(cfg)
	send := func(m *pb.TrainCodebookResponse) error {
		m.WorkerId = v.worker
		if v.reply != nil {
			if err := v.reply(m); err != nil {
				return err
			}
		}
		return s.Send(m)
	}
	if err := send(&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Accepted{Accepted: &pb.TrainingAccepted{
		Seed: c.Seed, SampledRows: c.Rows, DeviceBytes: 1 << 20,
	}}}); err != nil {
		return err
	}
	var prologue, rows []byte
	for want := int(cfg.GetRows()) * c.Codebook.Dimension * c.Element.Size(); len(rows) < want; {
		m, err := s.Recv()
		if err != nil {
			return invalid(fmt.Errorf("%d of %d bytes came: %w", len(rows), want, err))
		}
		if proto.Size(m) > 4<<20 {
			return invalid(errors.New("a message above 4 MiB"))
		}
		prologue, rows = append(prologue, m.GetPrologue()...), append(rows, m.GetRows()...)
		if m.GetRows() != nil {
			v.mu.Lock()
			v.pieces[call] = append(v.pieces[call], len(m.GetRows()))
			v.mu.Unlock()
		}
		err = send(&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Progress{Progress: &pb.TrainingProgress{
			Phase: pb.TrainingPhase_TRAINING_PHASE_WRITING, RowsTotal: cfg.GetRows(), RowsDone: uint64(len(rows) / c.Codebook.Dimension / c.Element.Size()),
		}}})
		if err != nil {
			return err
		}
	}
	if m, err := s.Recv(); !errors.Is(err, io.EOF) {
		return invalid(fmt.Errorf("behind the rows came %v, %w", m, err))
	}
	return v.train(s.Context(), cfg, c, prologue, vq.Decode(c.Element, rows), send)
}

// sample returns the rows to train on.
func sample(cfg *pb.TrainingConfig, c engine.TrainerConfig, all []float64) (rows []float64) {
	if c.Rows == cfg.GetRows() {
		return all
	}
	for i := range c.Rows {
		at := int(vq.Sample(c.Seed, i, c.Rows, cfg.GetRows()))
		rows = append(rows, all[at*c.Codebook.Dimension:(at+1)*c.Codebook.Dimension]...)
	}
	return rows
}

func (v *vectorServer) train(ctx context.Context, cfg *pb.TrainingConfig, c engine.TrainerConfig, prologue []byte, all []float64,
	send func(*pb.TrainCodebookResponse) error,
) (err error) {
	c.Seed += v.draws
	var t *vq.Training
	switch rows := sample(cfg, c, all); {
	case cfg.ResumeBytes != nil:
		t, err = vq.Resume(c, rows, prologue)
	default:
		t, err = vq.New(c, rows, vq.Decode(c.Codebook.Type, prologue))
	}
	if err != nil {
		return invalid(err)
	}
	last, had := engine.Round{}, false
	for t.Reason() == engine.Unfinished {
		r, err := t.Round()
		if err != nil {
			return invalid(err)
		}
		p := &pb.TrainingProgress{
			Phase: pb.TrainingPhase_TRAINING_PHASE_ASSIGNING, Iteration: proto.Uint64(uint64(r.Iteration)), Energy: proto.Float64(r.Energy),
			Changes: proto.Uint64(uint64(r.Changes)), Empty: proto.Uint64(uint64(r.Empty)), RowsDone: c.Rows, RowsTotal: c.Rows, Eta: durationpb.New(time.Second),
		}
		if had {
			p.EnergyDelta = proto.Float64(r.Energy - last.Energy)
		}
		if c.Algorithm == engine.Annealed {
			p.Temperature = proto.Float64(r.Temperature)
		}
		last, had = r, true
		for range 2 { // repeated, as between rounds
			if err := send(&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Progress{Progress: p}}); err != nil {
				return err
			}
		}
		if every := max(v.every, int64(cfg.GetCheckpointInterval())); every > 0 && (r.Iteration+1)%every == 0 && t.Reason() == engine.Unfinished {
			state := t.State()
			for at := 0; at < len(state); at += 100 {
				if err := send(&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Checkpoint{Checkpoint: &pb.TrainingCheckpoint{
					Iteration: uint64(r.Iteration + 1), Offset: uint64(at), Total: uint64(len(state)), Chunk: state[at:min(at+100, len(state))],
				}}}); err != nil {
					return err
				}
			}
		}
		if v.round != nil {
			if err := v.round(ctx, r); err != nil {
				return err
			}
		}
	}
	codewords := t.Codewords()
	for piece := range slices.Chunk(codewords, 1000) {
		if err := send(&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Codebook{Codebook: piece}}); err != nil {
			return err
		}
	}
	if cfg.GetReturnStatistics() {
		loads, variances := t.Loads(), t.Variances()
		for first := 0; first < len(loads); first += 2 { // in messages of two codewords
			m := &pb.CodewordStatistics{First: uint64(first)}
			for i := first; i < min(first+2, len(loads)); i++ {
				m.Rows = binary.LittleEndian.AppendUint64(m.Rows, loads[i])
				m.Variances = binary.LittleEndian.AppendUint64(m.Variances, math.Float64bits(variances[i]))
			}
			if err := send(&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Statistics{Statistics: m}}); err != nil {
				return err
			}
		}
	}
	if cfg.SaveAs != nil && v.unsaved == nil {
		v.keep(cfg.GetSaveAs(), c.Codebook, codewords)
	}
	ratio := float64(len(codewords)+int(cfg.GetRows())*c.Codebook.Subspaces*c.Codebook.CodeSize()) / float64(int(cfg.GetRows())*c.Codebook.Dimension*c.Element.Size())
	err = send(&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Finished{Finished: &pb.TrainingFinished{
		CodebookDigest: digest(c.Codebook, codewords), Reason: pb.TrainingReason(t.Reason()), Iterations: uint64(last.Iteration), Energy: last.Energy,
		Empty: uint64(last.Empty), CompressionRatio: ratio, Numerics: "vectors-1", RecomputedShare: 1,
		Timings: &pb.TrainingTimings{Device: durationpb.New(time.Second)},
	}}})
	return cmp.Or(err, v.unsaved)
}

// keep adds a codebook to the worker.
func (v *vectorServer) keep(name string, d engine.CodebookDesc, codewords []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.books[name] = &book{
		info: &pb.CodebookInfo{Name: name, State: pb.CodebookState_CODEBOOK_STATE_READY, CodebookDigest: digest(d, codewords), Shape: shape(d),
			WorkerIds: []string{v.worker}, DeviceBytes: d.Bytes(), VerifiedAge: durationpb.New(time.Minute)},
		codes: vq.Resident(d, codewords),
	}
}

func (v *vectorServer) find(name, want string) (*book, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b := v.books[name]
	switch {
	case b == nil || b.info.GetState() != pb.CodebookState_CODEBOOK_STATE_READY:
		return nil, refusal(codes.NotFound, "UNKNOWN_MODEL", "no such codebook")
	case want != "" && want != b.info.GetCodebookDigest():
		return nil, refusal(codes.FailedPrecondition, "DIGEST_MISMATCH", "another digest")
	}
	return b, nil
}

func (v *vectorServer) Encode(_ context.Context, in *pb.EncodeRequest) (*pb.EncodeResponse, error) {
	if v.encode != nil {
		if err := v.encode(in); err != nil {
			return nil, err
		}
	}
	b, err := v.find(in.GetCodebook(), in.GetExpectCodebookDigest())
	if err != nil {
		return nil, err
	}
	out, err := b.codes.Encode(engine.Encoding{Element: engineType(in.GetElementType()), Rows: in.GetRows(),
		Neighbours: max(1, int(in.GetNeighbours())), Distances: in.GetReturnDistances()})
	if err != nil {
		return nil, invalid(err)
	}
	answer := &pb.EncodeResponse{Codes: out.Codes, CodebookDigest: b.info.GetCodebookDigest(), CodeBytes: uint32(desc(b.info.GetShape()).CodeSize())}
	for _, d := range out.Distances {
		bits := math.Float32bits(d)
		answer.Distances = append(answer.Distances, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
	}
	return answer, bounded(in, answer)
}

// bounded refuses messages that are too large.
func bounded(in, out proto.Message) error {
	if proto.Size(in) > 4<<20 || proto.Size(out) > 4<<20 {
		return invalid(fmt.Errorf("a request of %d bytes, a reply of %d", proto.Size(in), proto.Size(out)))
	}
	return nil
}

func (v *vectorServer) Decode(_ context.Context, in *pb.DecodeRequest) (*pb.DecodeResponse, error) {
	if v.decode != nil {
		if err := v.decode(in); err != nil {
			return nil, err
		}
	}
	b, err := v.find(in.GetCodebook(), in.GetExpectCodebookDigest())
	if err != nil {
		return nil, err
	}
	rows, err := b.codes.Decode(in.GetCodes())
	if err != nil {
		return nil, invalid(err)
	}
	answer := &pb.DecodeResponse{Rows: rows, ElementType: b.info.GetShape().GetCodewordType(), CodebookDigest: b.info.GetCodebookDigest()}
	return answer, bounded(in, answer)
}

func (v *vectorServer) PutCodebook(s grpc.ClientStreamingServer[pb.PutCodebookRequest, pb.PutCodebookResponse]) error {
	var header *pb.PutCodebookHeader
	var codewords []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m.GetHeader() != nil {
			header = m.GetHeader()
		}
		codewords = append(codewords, m.GetChunk()...)
	}
	d := desc(header.GetShape())
	if got := digest(d, codewords); uint64(len(codewords)) != d.Bytes() || got != header.GetExpectCodebookDigest() {
		return invalid(fmt.Errorf("%d bytes with digest %s", len(codewords), got))
	}
	v.mu.Lock()
	v.puts++
	before := v.books[header.GetCodebook()]
	v.mu.Unlock()
	if before != nil && before.info.GetCodebookDigest() != header.GetExpectCodebookDigest() && !header.GetReplace() {
		return refusal(codes.AlreadyExists, "INVALID_ARGUMENT", "the name has other bytes")
	}
	v.keep(header.GetCodebook(), d, codewords)
	return s.SendAndClose(&pb.PutCodebookResponse{Copies: []*pb.CodebookCopy{{
		WorkerId: v.worker, CodebookDigest: header.GetExpectCodebookDigest(), DeviceBytes: d.Bytes(), AlreadyLoaded: before != nil,
	}}})
}

func (v *vectorServer) LoadCodebook(_ context.Context, in *pb.LoadCodebookRequest) (*pb.LoadCodebookResponse, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b := v.books[in.GetCodebook()]
	if b == nil {
		return nil, refusal(codes.NotFound, "UNKNOWN_MODEL", "no such codebook")
	}
	if want := in.GetExpectCodebookDigest(); want != "" && want != b.info.GetCodebookDigest() {
		return nil, refusal(codes.FailedPrecondition, "DIGEST_MISMATCH", "another digest")
	}
	already := b.info.GetState() == pb.CodebookState_CODEBOOK_STATE_READY
	b.info.State = pb.CodebookState_CODEBOOK_STATE_READY
	return &pb.LoadCodebookResponse{Copies: []*pb.CodebookCopy{{WorkerId: v.worker, CodebookDigest: b.info.GetCodebookDigest(),
		DeviceBytes: b.info.GetDeviceBytes(), AlreadyLoaded: already}}}, nil
}

func (v *vectorServer) UnloadCodebook(_ context.Context, in *pb.UnloadCodebookRequest) (*pb.UnloadCodebookResponse, error) {
	b, err := v.find(in.GetCodebook(), "")
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	b.info.State = pb.CodebookState_CODEBOOK_STATE_ON_DISK
	return &pb.UnloadCodebookResponse{WorkerIds: []string{v.worker}, FreedBytes: b.info.GetDeviceBytes()}, nil
}

func (v *vectorServer) ListCodebooks(context.Context, *pb.ListCodebooksRequest) (*pb.ListCodebooksResponse, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := &pb.ListCodebooksResponse{}
	for _, b := range v.books {
		out.Codebooks = append(out.Codebooks, proto.CloneOf(b.info))
	}
	slices.SortFunc(out.GetCodebooks(), func(a, b *pb.CodebookInfo) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

// npy writes an array and returns its path.
func npy(t *testing.T, name string, e vectorfile.ElementType, data []byte, shape ...int64) string {
	t.Helper()
	path := t.TempDir() + "/" + name
	f, err := os.Create(path)
	require.NoError(t, err)
	w, err := vectorfile.NewNpyWriter(f, e, shape...)
	require.NoError(t, err)
	_, err = w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
	return path
}
