/* Compiled twice: with the lane's declarations of UCX, and with UCX's own headers. */
#ifdef WH_UCX_HEADERS
#include <ucp/api/ucp.h>
#endif
#include "lane/ucx/ucp_declarations.h"
#include "support/ucx_facts.h"

#define VALUE(name) {#name, (long long)(name)},
#define FIELD(type, field)                                                                                             \
    {#type "." #field, (long long)offsetof(type, field)},                                                              \
        {#type "." #field " size", (long long)sizeof(((type *)NULL)->field)},
#define SIZE(type) {"sizeof " #type, (long long)sizeof(type)},

/* clang-format off */
const wh_ucx_fact WH_UCX_FACTS[] = {
    VALUE(UCS_OK) VALUE(UCS_INPROGRESS) VALUE(UCS_ERR_NO_MEMORY) VALUE(UCS_ERR_NOT_CONNECTED)
    VALUE(UCS_ERR_CONNECTION_RESET) VALUE(UCS_ERR_LAST) SIZE(ucs_status_t) SIZE(ucs_status_ptr_t)
    VALUE(UCS_PTR_IS_PTR(NULL)) VALUE(UCS_PTR_IS_PTR(16)) VALUE(UCS_PTR_IS_PTR(-1)) VALUE(UCS_PTR_IS_PTR(-100))
    VALUE(UCS_PTR_STATUS(NULL)) VALUE(UCS_PTR_STATUS(16)) VALUE(UCS_PTR_STATUS(-1)) VALUE(UCS_PTR_STATUS(-100))

    VALUE(UCP_PARAM_FIELD_FEATURES) VALUE(UCP_PARAM_FIELD_NAME) VALUE(UCP_FEATURE_WAKEUP) VALUE(UCP_FEATURE_AM)
    FIELD(ucp_params_t, field_mask) FIELD(ucp_params_t, features) FIELD(ucp_params_t, name)

    VALUE(UCP_WORKER_PARAM_FIELD_THREAD_MODE) VALUE(UCS_THREAD_MODE_SERIALIZED)
    FIELD(ucp_worker_params_t, field_mask) FIELD(ucp_worker_params_t, thread_mode)

    VALUE(UCP_EP_PARAM_FIELD_REMOTE_ADDRESS) VALUE(UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE)
    VALUE(UCP_EP_PARAM_FIELD_ERR_HANDLER) VALUE(UCP_EP_CLOSE_FLAG_FORCE) VALUE(UCP_ERR_HANDLING_MODE_PEER)
    FIELD(ucp_ep_params_t, field_mask) FIELD(ucp_ep_params_t, address) FIELD(ucp_ep_params_t, err_mode)
    FIELD(ucp_ep_params_t, err_handler) FIELD(ucp_err_handler_t, cb) FIELD(ucp_err_handler_t, arg)

    VALUE(UCP_AM_HANDLER_PARAM_FIELD_ID) VALUE(UCP_AM_HANDLER_PARAM_FIELD_FLAGS)
    VALUE(UCP_AM_HANDLER_PARAM_FIELD_CB) VALUE(UCP_AM_HANDLER_PARAM_FIELD_ARG) VALUE(UCP_AM_FLAG_WHOLE_MSG)
    VALUE(UCP_AM_RECV_ATTR_FLAG_RNDV) VALUE(UCP_AM_SEND_FLAG_EAGER) VALUE(UCP_AM_SEND_FLAG_RNDV)
    FIELD(ucp_am_recv_param_t, recv_attr) FIELD(ucp_am_handler_param_t, field_mask)
    FIELD(ucp_am_handler_param_t, id) FIELD(ucp_am_handler_param_t, flags) FIELD(ucp_am_handler_param_t, cb)
    FIELD(ucp_am_handler_param_t, arg)

    VALUE(UCP_OP_ATTR_FIELD_CALLBACK) VALUE(UCP_OP_ATTR_FIELD_USER_DATA) VALUE(UCP_OP_ATTR_FIELD_FLAGS)
    FIELD(ucp_request_param_t, op_attr_mask) FIELD(ucp_request_param_t, flags) FIELD(ucp_request_param_t, cb.send)
    FIELD(ucp_request_param_t, cb.recv_am) FIELD(ucp_request_param_t, user_data)
    {NULL, 0},
};
/* clang-format on */
