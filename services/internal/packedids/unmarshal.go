package packedids

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// minBytes is the length of a request from which ids are decoded here.
const minBytes = 4 << 10

// Fields of a GenerateRequest.
var (
	tokenIDsField = (&pb.GenerateRequest{}).ProtoReflect().Descriptor().Fields().ByName("token_ids")
	idsNumber     = (&pb.TokenIds{}).ProtoReflect().Descriptor().Fields().ByName("ids").Number()
)

// Unmarshal does exactly what proto.Unmarshal does.
func Unmarshal(raw []byte, m proto.Message) error {
	in, ok := m.(*pb.GenerateRequest)
	if !ok || len(raw) < minBytes {
		return proto.Unmarshal(raw, m)
	}
	begin, end, list, plain := findIDs(raw)
	if !plain {
		return proto.Unmarshal(raw, m)
	}
	ids, ok := readIDs(list)
	if !ok {
		return proto.Unmarshal(raw, m)
	}
	if err := proto.Unmarshal(slices.Concat(raw[:begin], raw[end:]), in); err != nil {
		return err
	}
	in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}
	return nil
}

// findIDs returns where the field token_ids of a request begins and ends, and its packed list.
// plain is false, and protobuf must decode the request, if there is another input or the field
// holds anything but one list.
func findIDs(raw []byte) (begin, end int, list []byte, plain bool) {
	input := tokenIDsField.ContainingOneof().Fields()
	for pos := 0; pos < len(raw); {
		number, kind, tag := protowire.ConsumeTag(raw[pos:])
		if tag < 0 {
			return 0, 0, nil, false
		}
		size := protowire.ConsumeFieldValue(number, kind, raw[pos+tag:])
		if size < 0 {
			return 0, 0, nil, false
		}
		next := pos + tag + size
		if input.ByNumber(number) != nil {
			if plain || number != tokenIDsField.Number() || kind != protowire.BytesType {
				return 0, 0, nil, false
			}
			body, _ := protowire.ConsumeBytes(raw[pos+tag:])
			if list, plain = onlyList(body, idsNumber); !plain {
				return 0, 0, nil, false
			}
			begin, end = pos, next
		}
		pos = next
	}
	return begin, end, list, plain
}

// onlyList returns the packed list of a message that holds nothing else.
func onlyList(body []byte, number protoreflect.FieldNumber) (list []byte, ok bool) {
	field, kind, tag := protowire.ConsumeTag(body)
	if tag < 0 || field != number || kind != protowire.BytesType {
		return nil, false
	}
	list, size := protowire.ConsumeBytes(body[tag:])
	return list, size == len(body)-tag
}

// continuation has the bit of each byte that is set in all bytes of a varint but the last.
const continuation = 0x8080808080808080

// readIDs decodes packed varints. ok is false if one of them is not an id.
func readIDs(list []byte) (ids []uint32, ok bool) {
	count, pos := 0, 0
	for ; pos+8 <= len(list); pos += 8 {
		count += bits.OnesCount64(^binary.LittleEndian.Uint64(list[pos:]) & continuation)
	}
	ids = make([]uint32, count+len(list)-pos)
	count = 0
	for {
		n, bytes := readPairs(list, ids[count:])
		if list, count = list[bytes:], count+n; len(list) == 0 {
			return ids[:count], true
		}
		v, bytes := protowire.ConsumeVarint(list)
		if bytes < 0 || v > math.MaxUint32 {
			return nil, false
		}
		ids[count] = uint32(v)
		list, count = list[bytes:], count+1
	}
}

// readPairs decodes two ids at a time while the next eight bytes begin with two ids of up to four
// bytes. The lengths of ids are unpredictable, so nothing here branches on them. They only
// determine where the next pair begins.
func readPairs(list []byte, ids []uint32) (count, bytes int) {
	n, pos := uint(0), uint(0)
	for pos+8 <= uint(len(list)) && n+2 <= uint(len(ids)) {
		word := binary.LittleEndian.Uint64(list[pos : pos+8])
		first := ^word & continuation
		second := first & (first - 1)
		if second == 0 || uint32(first) == 0 {
			break
		}
		firstMask := first ^ (first - 1) // the bits of the first id
		secondBits := word & (second - 1) &^ firstMask >> (uint(bits.TrailingZeros64(first)) & 63) >> 1
		if secondBits > math.MaxUint32 {
			break
		}
		v := group(word&firstMask | secondBits<<32)
		pair := ids[n : n+2]
		pair[0], pair[1] = uint32(v), uint32(v>>32)
		n, pos = n+2, pos+uint(bits.TrailingZeros64(second))/8+1
	}
	return int(n), int(pos)
}

// group returns the values of two varints of up to four bytes.
func group(v uint64) uint64 {
	v = v&0x007f007f007f007f | v>>1&0x3f803f803f803f80
	return v&0x00003fff00003fff | v>>2&0x0fffc0000fffc000
}
