"""The numbers that unmodified QMQ processes know do not move."""

from delay_protocol.basics.codes import CommandCode, ItemCode, ResponseCode


def test_the_numbers_of_requests() -> None:
    assert {code.name: int(code) for code in CommandCode} == {
        "SEND_MESSAGE": 10,
        "PULL_MESSAGE": 11,
        "ACK_REQUEST": 12,
        "SYNC_LOG_REQUEST": 20,
        "SYNC_CHECKPOINT_REQUEST": 21,
        "CONSUME_MANAGE": 25,
        "BROKER_REGISTER": 30,
        "CLIENT_REGISTER": 35,
        "BROKER_ACQUIRE_META": 40,
        "HEARTBEAT": 100,
        "HELLO": 1001,
        "NODE_REGISTER": 1010,
        "NODE_CHALLENGE": 1011,
        "NODE_WATCH": 1013,
        "GROUP_CHANGE": 1014,
        "FOLLOW": 1020,
        "BATCHES": 1021,
        "ACK": 1022,
        "LEAVE": 1023,
        "SNAPSHOT": 1024,
        "SNAPSHOT_READ": 1025,
        "ATTACH": 1040,
        "DELIVER": 1041,
        "SETTLE": 1042,
        "FLOW": 1043,
        "RECEIVER_REGISTER": 1044,
        "CHANGE": 1050,
    }


def test_the_numbers_of_answers() -> None:
    assert {code.name: int(code) for code in ResponseCode} == {
        "SUCCESS": 0,
        "UNKNOWN_CODE": 3,
        "NO_MESSAGE": 4,
        "BROKER_ERROR": 51,
        "BROKER_REJECT": 52,
        "PARAM_ERROR": 53,
        "UNAUTHENTICATED": 1001,
    }


def test_the_numbers_of_item_results() -> None:
    assert {code.name: int(code) for code in ItemCode} == {
        "SUCCESS": 0,
        "BROKER_BUSY": 1,
        "MESSAGE_DUPLICATE": 2,
        "SUBJECT_NOT_ASSIGNED": 3,
        "BROKER_READ_ONLY": 4,
        "BLOCK": 5,
        "STORE_ERROR": 6,
    }
