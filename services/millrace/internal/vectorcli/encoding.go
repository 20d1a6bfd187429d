package vectorcli

import (
	"context"
	"fmt"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/retry"
)

// encoding is a file of rows that becomes files of codes and distances.
type encoding struct {
	client    pb.VectorServiceClient
	rows      *vectorfile.File
	book      *codebook
	request   *pb.EncodeRequest // without its rows
	codes     *npyFile
	distances *npyFile // nil if not wanted
	done      int64    // rows written
}

func (e *encoding) product() bool {
	return e.book.shape.GetKind() == pb.CodebookKind_CODEBOOK_KIND_PRODUCT
}

// columns returns the codes of a row.
func (e *encoding) columns() int {
	if e.product() {
		return int(e.book.shape.GetSubspaces())
	}
	return int(max(1, e.request.GetNeighbours()))
}

// packing returns the layout of a product codebook's codes in a file.
func packing(s *pb.CodebookShape) vectorfile.Packing {
	return vectorfile.PackingOf(int(s.GetSubspaces()), int(s.GetCodewords()))
}

// fileBytes returns the bytes of a row's codes in the file.
func (e *encoding) fileBytes() int {
	if e.product() {
		return packing(e.book.shape).RowBytes()
	}
	return e.columns() * codeBytes(e.book.shape)
}

// distancesOfRow returns how many distances a row has.
func (e *encoding) distancesOfRow() int {
	switch {
	case !e.request.GetReturnDistances():
		return 0
	case e.product():
		return 1
	}
	return e.columns()
}

// create creates the files.
func (e *encoding) create(codes, distances string) (err error) {
	n := e.rows.Rows()
	shape := []int64{n, int64(e.columns())}
	switch {
	case e.product():
		e.codes, err = createNpy(codes, vectorfile.U8, n, int64(e.fileBytes()))
		shape = shape[:1]
	case e.request.Neighbours == nil:
		shape = shape[:1]
		fallthrough
	default:
		e.codes, err = createNpy(codes, vectorfile.CodeType(int(e.book.shape.GetCodewords())), shape...)
	}
	if err == nil && distances != "" {
		if e.distances, err = createNpy(distances, vectorfile.F32, shape...); err != nil {
			e.codes.discard()
		}
	}
	return err
}

func (e *encoding) discard() {
	e.codes.discard()
	if e.distances != nil {
		e.distances.discard()
	}
}

func (e *encoding) keep() error {
	if e.distances != nil {
		if err := e.distances.keep(); err != nil {
			return err
		}
	}
	return e.codes.keep()
}

// each returns the rows of a piece: its request and its reply are both below the limit.
func (e *encoding) each() int64 {
	reply := e.columns()*codeBytes(e.book.shape) + 4*e.distancesOfRow()
	return int64(max(1, maxPayload/max(e.rows.RowBytes(), reply)))
}

// piece encodes n rows from first on.
func (e *encoding) piece(ctx context.Context, first, n int64) (*pb.EncodeResponse, error) {
	rows := make([]byte, n*int64(e.rows.RowBytes()))
	for have := int64(0); have < n; {
		got, err := e.rows.ReadRows(rows[have*int64(e.rows.RowBytes()):], first+have)
		if err != nil {
			return nil, failure.Usagef("read rows from %d on: %w", first+have, err)
		}
		have += int64(got)
	}
	req := proto.CloneOf(e.request)
	req.Rows = rows
	out, err := retry.Do(ctx, func(ctx context.Context) (*pb.EncodeResponse, error) {
		return e.client.Encode(ctx, req, rpc.WithZeroCopyRequest())
	})
	if err != nil {
		return nil, failure.OfCall(inPiece(err, first, n), e.book.name, nil)
	}
	codes, distances := int(n)*e.columns()*codeBytes(e.book.shape), 4*int(n)*e.distancesOfRow()
	switch {
	case out.GetCodebookDigest() != e.book.digest:
		return nil, fmt.Errorf("%w: it encoded with the codebook %s and not %s", errReply, out.GetCodebookDigest(), e.book.digest)
	case len(out.GetCodes()) != codes || len(out.GetDistances()) != distances:
		return nil, fmt.Errorf("%w: %d rows got %d bytes of codes and %d of distances, want %d and %d", errReply, n,
			len(out.GetCodes()), len(out.GetDistances()), codes, distances)
	}
	return out, nil
}

// inPiece adds the rows of the file to an error, because a server numbers the rows of its piece.
func inPiece(err error, first, n int64) error {
	st, isStatus := status.FromError(err)
	if first == 0 || !isStatus {
		return err
	}
	refusal := st.Proto()
	refusal.Message = fmt.Sprintf("rows %d to %d, numbered from 0 there: %s", first, first+n-1, refusal.GetMessage())
	return status.ErrorProto(refusal)
}

// write writes the codes of the next rows.
func (e *encoding) write(out *pb.EncodeResponse) error {
	codes := out.GetCodes()
	e.done += int64(len(codes) / (e.columns() * codeBytes(e.book.shape)))
	if e.product() {
		p := packing(e.book.shape)
		packed := make([]byte, len(codes)/p.CodeBytes()*p.RowBytes())
		if err := p.Pack(packed, codes); err != nil {
			return fmt.Errorf("%w: %w", errReply, err)
		}
		codes = packed
	}
	if _, err := e.codes.Write(codes); err != nil {
		return err
	}
	if e.distances != nil {
		if _, err := e.distances.Write(out.GetDistances()); err != nil {
			return err
		}
	}
	return nil
}
