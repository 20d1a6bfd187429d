package longids

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

// long is how many bytes a request has whose token ids are read apart.
const long = 4 << 10

// Fields of a GenerateRequest.
var (
	tokenIDsField = (&pb.GenerateRequest{}).ProtoReflect().Descriptor().Fields().ByName("token_ids")
	idsNumber     = (&pb.TokenIds{}).ProtoReflect().Descriptor().Fields().ByName("ids").Number()
)

// Unmarshal is proto.Unmarshal, to the letter.
func Unmarshal(raw []byte, m proto.Message) error {
	in, ok := m.(*pb.GenerateRequest)
	if !ok || len(raw) < long {
		return proto.Unmarshal(raw, m)
	}
	begin, end, list, alone := findIDs(raw)
	if !alone {
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

// findIDs finds the field token_ids of a request, from begin to end, and in it its list as it is packed. It is alone if there is no
// other input, and nothing but one list in it; what is not is left to protobuf.
func findIDs(raw []byte) (begin, end int, list []byte, alone bool) {
	input := tokenIDsField.ContainingOneof().Fields()
	for at := 0; at < len(raw); {
		number, kind, tag := protowire.ConsumeTag(raw[at:])
		if tag < 0 {
			return 0, 0, nil, false
		}
		size := protowire.ConsumeFieldValue(number, kind, raw[at+tag:])
		if size < 0 {
			return 0, 0, nil, false
		}
		next := at + tag + size
		if input.ByNumber(number) != nil {
			if alone || number != tokenIDsField.Number() || kind != protowire.BytesType {
				return 0, 0, nil, false
			}
			body, _ := protowire.ConsumeBytes(raw[at+tag:])
			if list, alone = onlyList(body, idsNumber); !alone {
				return 0, 0, nil, false
			}
			begin, end = at, next
		}
		at = next
	}
	return begin, end, list, alone
}

// onlyList is the packed list of a message that holds nothing else.
func onlyList(body []byte, number protoreflect.FieldNumber) (list []byte, ok bool) {
	is, kind, tag := protowire.ConsumeTag(body)
	if tag < 0 || is != number || kind != protowire.BytesType {
		return nil, false
	}
	list, size := protowire.ConsumeBytes(body[tag:])
	return list, size == len(body)-tag
}

// ends has the bit of each byte that is not set in the last of a varint.
const ends = 0x8080808080808080

// readIDs reads packed varints. False: there is one that is no id.
func readIDs(list []byte) (ids []uint32, ok bool) {
	count, at := 0, 0
	for ; at+8 <= len(list); at += 8 {
		count += bits.OnesCount64(^binary.LittleEndian.Uint64(list[at:]) & ends)
	}
	ids = make([]uint32, count+len(list)-at)
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

// readPairs reads ids as long as there are eight bytes of which two ids of up to four bytes take the first. Ids differ in length as by
// chance, so that nothing here depends on lengths but where the next pair begins.
func readPairs(list []byte, ids []uint32) (count, bytes int) {
	n, at := uint(0), uint(0)
	for at+8 <= uint(len(list)) && n+2 <= uint(len(ids)) {
		word := binary.LittleEndian.Uint64(list[at : at+8])
		first := ^word & ends
		second := first & (first - 1)
		if second == 0 || uint32(first) == 0 {
			break
		}
		own := first ^ (first - 1) // the bits of the first id
		behind := word & (second - 1) &^ own >> (uint(bits.TrailingZeros64(first)) & 63) >> 1
		if behind > math.MaxUint32 {
			break
		}
		v := group(word&own | behind<<32)
		pair := ids[n : n+2]
		pair[0], pair[1] = uint32(v), uint32(v>>32)
		n, at = n+2, at+uint(bits.TrailingZeros64(second))/8+1
	}
	return int(n), int(at)
}

// group is the values of two varints of up to four bytes.
func group(v uint64) uint64 {
	v = v&0x007f007f007f007f | v>>1&0x3f803f803f803f80
	return v&0x00003fff00003fff | v>>2&0x0fffc0000fffc000
}
